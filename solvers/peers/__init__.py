"""Other planners, each re-implemented in its own cost model, with the exact answer in that model beside it.

These are oracles and straw men, not solvers of an :class:`~formulation.instance.Instance`: each takes a problem
of ``formulation.peers`` and returns a small record of its own, in its own terms, with its value in seconds.
"""
