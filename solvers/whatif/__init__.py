"""What the best plan would be if something were otherwise: variants of an instance, and the best plan of each."""
