"""What a plan takes when it is executed, to the nanosecond, without a timeline: recursions over passes."""
