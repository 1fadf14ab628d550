"""What a log holds of its policy, without a model: sampler against trainer, entropy, staleness, ends of completions."""
