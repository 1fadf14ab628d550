"""What comes from outside: which files are read and how much of them, and one grammar of JSON and of numbers."""
