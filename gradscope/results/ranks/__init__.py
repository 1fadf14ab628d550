"""What curves of ranks and rows that are tokens hold."""
