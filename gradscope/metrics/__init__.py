"""Numbers from numbers: numpy and scipy, no files, no torch."""
