"""Tasks: the embedded sums and their variants, data files, answers, and the warm start."""
