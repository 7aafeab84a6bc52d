"""The declarative solver: one CP-SAT model of cut points, device groups and parallel forms."""
