"""The timeline: a schedule executed action by action, transfer by transfer, in whole nanoseconds."""
