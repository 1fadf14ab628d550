"""Trainers whose log takes one file to read."""
