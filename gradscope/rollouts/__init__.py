"""Rollouts: types, readers for each trainer's files, the run folder."""
