"""Plans run step by step: orders of actions, and what is written of them."""
