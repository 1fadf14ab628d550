"""From inputs to a result object: one folder a command, each with a plain function."""
