"""Why a plan is as it is, and how two plans differ: as lines for people and as JSON."""
