"""Ways to find a plan. One algorithm per file; one signature: ``solve(instance, ...) -> Outcome``."""
