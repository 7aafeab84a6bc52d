"""The step as executed: bounds of intervals, compositions that they leave, and paths that close these."""
