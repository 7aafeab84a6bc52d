"""What a run takes on this machine: times of passes, steps and transfers, and the bytes that are held."""
