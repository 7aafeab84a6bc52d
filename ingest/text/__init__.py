"""Text that people write, made into data that remembers its lines: YAML, overrides, quantities with units."""
