"""Layers divided over the devices of a replica: what each device has of every tensor, and how that is changed."""
