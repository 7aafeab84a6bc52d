"""The PipePar paper's own dynamic programme, readable beside the paper: what optima are held against."""
