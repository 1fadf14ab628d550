"""The recorder for a TRL script of one's own: rows, manifest, weights, gradients while it trains."""
