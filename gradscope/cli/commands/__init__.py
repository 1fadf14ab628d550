"""One file a command: its options, its call, its output."""
