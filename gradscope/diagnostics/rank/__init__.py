"""`gradscope rank`: spectra of rollouts, tokens, weights and formulations, and what compares them."""
