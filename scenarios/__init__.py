"""The scenario files that ship, and the command line that runs them."""
