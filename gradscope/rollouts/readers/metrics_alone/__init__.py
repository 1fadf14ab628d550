"""Logs of metrics without rollouts: which files, which names, and the run that they make."""
