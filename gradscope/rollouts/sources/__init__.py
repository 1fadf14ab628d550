"""Remote logs: the files that a URL names, copied to this machine and kept up to date."""
