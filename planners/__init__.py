"""Published planners, one folder a paper: planner, the authors' program, format, numbers, study."""
