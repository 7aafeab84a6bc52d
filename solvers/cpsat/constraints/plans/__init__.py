"""The families of constraints that speak of whole plans."""
