"""The families of constraints that speak of layers."""
