"""Every sentence about the ranks of a run's gradients, and which of them is read first."""
