"""Choices above a single instance: micro-batches, schedule, chunks, and in which order the layers run."""
