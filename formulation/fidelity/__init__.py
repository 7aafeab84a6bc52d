"""Predictions of published and measured runs, and what they rest on."""
