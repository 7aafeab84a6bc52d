"""Sweeps: the best plans of thousands of scenarios, on processes of this machine or on a scheduler's."""
