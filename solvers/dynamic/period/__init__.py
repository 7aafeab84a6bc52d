"""The programme for the executed period: of every suffix of a plan the one number that stages before it need."""
