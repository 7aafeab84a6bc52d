"""Bounds of all plans that may still be within a limit on the step: sums of passes, games of paths and plans."""
