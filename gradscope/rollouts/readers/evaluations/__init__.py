"""Results of evaluations: several samples of each prompt, without steps."""
