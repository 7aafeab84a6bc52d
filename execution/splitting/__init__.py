"""A model split at the cuts of a plan: one torch module a stage, with the model's own parameter names."""
