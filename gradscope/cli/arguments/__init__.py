"""Options that several commands share, and how lists, ranges and columns are written."""
