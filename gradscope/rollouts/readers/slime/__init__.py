"""Logs of slime and of the trainers that grew out of it."""
