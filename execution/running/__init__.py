"""A plan run: stages on processes, passes in the order of a schedule, tensors exchanged with neighbours."""
