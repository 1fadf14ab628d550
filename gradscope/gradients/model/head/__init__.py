"""The output layer in slices of the vocabulary, and which models have one that allows it."""
