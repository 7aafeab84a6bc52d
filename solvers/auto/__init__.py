"""One way to every solver: who is asked first, who checks, and what to try where nothing is proved."""
