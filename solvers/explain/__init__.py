"""Why there is no plan: the limits that clash, and the least change that helps."""
