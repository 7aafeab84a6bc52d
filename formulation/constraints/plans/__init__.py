"""Constraints that speak of whole plans."""
