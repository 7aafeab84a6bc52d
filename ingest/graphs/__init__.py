"""Layer graphs and measured profiles, read from files."""
