"""The best order of a step's actions: one schedule for one set of stages, proved instead of prescribed."""
