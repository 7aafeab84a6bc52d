"""The exact search over suffixes of plans, with all that stages before them see: executed times, and formulas."""
