"""Choices above a single instance: how many micro-batches a step has, and in which order its layers run."""
