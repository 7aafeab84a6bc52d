"""What if: the best plan of a scenario under one change at a time, as lines for people and as JSON."""
