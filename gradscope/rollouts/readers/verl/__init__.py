"""verl's rollout dumps and the metrics of its file logger."""
