"""From rewards to advantages: the same code trains and diagnoses."""
