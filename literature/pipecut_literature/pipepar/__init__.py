"""PipePar (CSCWD 2021): its tables and figures beside those of its programme."""
