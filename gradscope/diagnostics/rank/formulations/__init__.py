"""What other advantage formulations and baselines would have made of the same gradients."""
