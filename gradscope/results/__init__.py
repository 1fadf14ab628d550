"""What each command finds, as plain frozen types, and the JSON envelope they travel in."""
