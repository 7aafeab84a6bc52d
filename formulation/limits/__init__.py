"""How long and how large a search may be."""
