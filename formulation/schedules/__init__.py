"""Pipeline schedules: pure functions of integers that yield, for every rank, its actions in order."""
