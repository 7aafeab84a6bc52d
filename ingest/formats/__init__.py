"""Foreign formats: an importer for each, which returns a problem of ``formulation.peers`` or a record of its own.

Every importer reads a file up to a limit, executes nothing, refuses what it does not know, and names every problem
that it finds at once, with its place in the file, what it found and what it expected.
"""
