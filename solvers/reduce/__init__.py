"""Deep models reduced, exactly, to the few atoms that they are made of, and searched in that form."""
