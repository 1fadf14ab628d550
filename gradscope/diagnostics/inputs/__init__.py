"""From paths and options to runs and measured steps, which are cached where a command may be resumed."""
