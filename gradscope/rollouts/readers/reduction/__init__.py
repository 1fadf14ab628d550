"""Logs of any size reduced to their rewards: columns first, and a row as an object only where it is irregular."""
