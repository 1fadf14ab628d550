"""Ranks of token rows, from a matrix or without one."""
