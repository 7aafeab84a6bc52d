"""Proofs about executed times: that no plan keeps to a period, or to a time of a step.

Whoever checks such a proof goes through all plans by what a few numbers say of their last stages. Nothing here
comes from a solver: passes of stages are those of ``formulation.costs.passes``, memory that of
``formulation.costs.memory``, and devices those of ``formulation.suffixes``. All numbers are whole ones
of 64 bits, and what could be larger is refused.
"""
