"""Logs of metrics without rollouts: their files, their names, and the run in them."""
