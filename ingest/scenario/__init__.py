"""Scenario files: what may be written, what it means, and messages that name the line."""
