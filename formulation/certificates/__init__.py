"""Proofs that a short program checks without a solver: their labels, and the checker."""
