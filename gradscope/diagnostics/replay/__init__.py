"""`gradscope replay`: what a trainer logged, recomputed: rewards and advantages, log-probabilities, gradient norm."""
