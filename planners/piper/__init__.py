"""Piper (NeurIPS 2021) in its own cost model."""
