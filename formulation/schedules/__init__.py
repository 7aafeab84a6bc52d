"""A training and its pipeline schedules, functions of integers that yield, for each rank, its actions in order."""
