"""From inputs to a result object: one file a command, each a plain function."""
