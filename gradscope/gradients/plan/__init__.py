"""What to differentiate: the trainer's own weight of every token, and the rows that follow from it."""
