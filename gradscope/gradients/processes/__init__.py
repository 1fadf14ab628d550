"""Several processes that measure one run together: connected, of one mind, and each with a part of the weights."""
