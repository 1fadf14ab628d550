"""Rows that are single tokens: exact, sampled or sketched."""
