"""Constraints that speak of layers: where cuts may be, which share a stage, where they run, in which form."""
