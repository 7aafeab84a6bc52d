"""The best order of the actions of a step, searched and proved by CP-SAT."""
