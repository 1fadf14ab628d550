"""prime-rl's traces and its export of tokens."""
