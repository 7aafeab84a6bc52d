"""Exit codes, messages, progress, interrupts: what every command does with the terminal."""
