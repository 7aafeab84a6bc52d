"""What people do without a planner: data parallelism, equally many layers."""
