"""The programme for the executed period: of every suffix of a plan what stages before it need to know."""
