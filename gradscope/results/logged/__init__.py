"""What a log alone says of its policy: each part with the same numbers of the whole log and of each step."""
