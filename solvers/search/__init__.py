"""What every search has in common: when it ends, and what is known when it does."""
