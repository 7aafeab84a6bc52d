"""CP-SAT over places to cut: a model without single layers, and exact rows of the stages that it proposes."""
