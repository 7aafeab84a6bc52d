"""What a plan must keep beyond being a plan: the rules, each with its number and its words."""
