"""The families of constraints that make the declarative model."""
