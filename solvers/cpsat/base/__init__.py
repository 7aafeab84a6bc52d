"""The model's variables, its engine, and how a solution is read."""
