"""The branch and bound for the time of a step: latency and bottleneck together."""
