"""Which figures show which result, and how a figure becomes files that never differ between two runs."""
