"""What each operator of a trace computes, keeps for backward, and how it may be split."""
