"""What a plan must keep beyond being a plan: one file a constraint, in the folders below, and what they share."""
