"""The families of constraints that speak of the devices of stages."""
