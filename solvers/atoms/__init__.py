"""What lies between two neighbouring places to cut, made once: its best splits, and chains of them, exactly."""
