"""The outside world made into an instance: scenario files, torch models, traced graphs."""
