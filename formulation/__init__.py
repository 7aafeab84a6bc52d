"""The problem, said once: what a plan is, what it costs, and which rules it must keep."""
