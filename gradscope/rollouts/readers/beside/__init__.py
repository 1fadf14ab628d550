"""What trainers leave beside their logs: their configuration and their checkpoints."""
