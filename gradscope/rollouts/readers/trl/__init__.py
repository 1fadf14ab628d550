"""TRL's tables of completions, its trainer state, and the groups in its blocks of rows."""
