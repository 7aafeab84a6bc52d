"""PipePar (CSCWD 2021): its planner, tables and figures."""
