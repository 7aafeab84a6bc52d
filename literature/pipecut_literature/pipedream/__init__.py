"""PipeDream (SOSP 2019): its optimiser as stated and as programmed, and its published plans."""
