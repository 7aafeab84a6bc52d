"""Megatron-LM: its grid of degrees, and the step times and memories of its papers."""
