"""What every number is called: formula, range, direction and source, one file a family; every output reads it."""
