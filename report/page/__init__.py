"""The page of a run, made from its content and templates."""
