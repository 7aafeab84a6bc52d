"""The exact search for the executed step where backward passes have two halves: ZB-H1, of so many stages."""
