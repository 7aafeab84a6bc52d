"""Plans, certificates and schedules, read from files and written to them."""
