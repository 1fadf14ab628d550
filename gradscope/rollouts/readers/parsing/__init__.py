"""Shared by readers: files into rows, cells into values, rows into groups, and bad rows set aside."""
