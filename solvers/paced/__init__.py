"""The exact branch and bound for the time of one step: latency and bottleneck weighed against each other."""
