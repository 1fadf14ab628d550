"""Logs that lie elsewhere: what a URL names, copied to this machine and kept up to date."""
