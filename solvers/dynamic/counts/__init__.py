"""The programme over device states where alike servers are counts: the fewest devices that a suffix needs."""
