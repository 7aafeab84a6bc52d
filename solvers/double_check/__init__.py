"""Second, different routes to the same claim: each asks in its own way whether a proof can be true."""
