"""Which prompts get how many samples: rounds of dynamic sampling, budgets re-allocated."""
