"""Results as tables and lines for people: the result first, then what was done for it."""
