"""A claim held against other methods: a second exact solve, other solvers, certificates."""
