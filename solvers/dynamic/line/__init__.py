"""The programme for devices in a line."""
