"""Device placement of operator graphs (NeurIPS 2020) in its own cost model."""
