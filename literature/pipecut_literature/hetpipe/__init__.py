"""HetPipe (ATC 2020): partitions over unlike devices, and its tables."""
