"""Plans that run: a model split into the stages of a plan, on stock PyTorch."""
