"""Certificates made: the labels, or the weighed paths, that prove as large a bound as there is a proof for."""
