"""The scenario files that ship, and the schemas of what is read and written."""
