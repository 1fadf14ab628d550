"""What a Gram matrix of gradient rows says: spectra and ranks, norms, cosines, sparsity, baselines, null models."""
