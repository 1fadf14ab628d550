"""From a model and its rollouts to Gram matrices of gradients; beside training the only layer that knows torch."""
