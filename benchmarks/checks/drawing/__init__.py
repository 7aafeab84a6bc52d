"""Scenarios drawn from their schema, so small that every plan can be priced."""
