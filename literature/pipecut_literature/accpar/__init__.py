"""AccPar (HPCA 2020): types a layer in its own cost model, and its speed-ups."""
