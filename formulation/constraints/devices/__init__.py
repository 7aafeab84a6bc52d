"""Constraints that speak of the devices and servers of stages, and how stages use them."""
