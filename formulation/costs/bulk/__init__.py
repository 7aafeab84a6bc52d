"""Numbers of layers, written out a second time and made in bulk, for the tables."""
