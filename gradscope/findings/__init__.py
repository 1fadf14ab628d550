"""Every sentence about a result: the number, what it means, what to try."""
