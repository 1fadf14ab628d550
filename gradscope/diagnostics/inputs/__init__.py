"""From paths and options to runs and measured steps, kept where a command may be resumed."""
