"""Results as matplotlib figures."""
