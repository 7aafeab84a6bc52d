"""PyTorch models made into layer graphs, without allocating weights; traces are kept."""
