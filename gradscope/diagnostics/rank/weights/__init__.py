"""Ranks of weight matrices: their gradients, and their change between checkpoints."""
