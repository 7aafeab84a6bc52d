"""Sailor: measured profiles and runs, and what is predicted of them."""
