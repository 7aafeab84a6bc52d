"""What every search shares: goals in order, a first plan."""
