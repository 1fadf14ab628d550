"""Trainers whose reader is a single file."""
