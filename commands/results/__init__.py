"""What the functions of ``pipecut`` return to programs."""
