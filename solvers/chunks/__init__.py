"""Plans whose groups hold several stages each: by CP-SAT over runs of atoms, and by moves of single atoms."""
