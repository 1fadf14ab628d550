"""Sections of what a log alone says of its policy: sampler and trainer, entropy, staleness, ends of completions."""
