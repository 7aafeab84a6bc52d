"""Published hand-tuned configurations of large runs, as data, as plans, and beside the best plans."""
