"""Results of evaluations: several samples a prompt, without steps."""
