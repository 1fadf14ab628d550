"""The trainer's own weight of every token, and the gradient rows that follow from it."""
