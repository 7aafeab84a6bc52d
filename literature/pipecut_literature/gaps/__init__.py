"""The gap table: how far each planner ends from the proved optimum, over all shipped scenarios."""
