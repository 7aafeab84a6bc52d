"""PipePar (CSCWD 2021): its planner, Listing 1, tables and figures."""
