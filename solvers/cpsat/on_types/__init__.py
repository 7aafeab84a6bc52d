"""CP-SAT over types of stages: the declarative model of deep models on a line, on the tables of the reduction."""
