"""Gradients of single modules as factors: the rule of each layer kind, and the hooks that record what it needs."""
