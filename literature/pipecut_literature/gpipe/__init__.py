"""GPipe (NeurIPS 2019): its partitioner, its memory table and speed-ups."""
