"""HyPar (HPCA 2019): data or model parallelism a layer."""
