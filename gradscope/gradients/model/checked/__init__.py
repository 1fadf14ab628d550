"""What a checkpoint's files say, held to what it can be before a loader believes it."""
