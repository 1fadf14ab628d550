"""One step measured and checked: Gram, self-check, error of a row, spectra of weights, and the file that keeps it."""
