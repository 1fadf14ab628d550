"""Rows that are single tokens: exact, sketched to a common basis, or without a matrix."""
