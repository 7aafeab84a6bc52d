"""The exact search for the time of a step as executed: suffixes of plans with all that stages before them see."""
