"""Sums of token gradients under weights of their own: corrections for another sampler, kinds of tokens, turns."""
