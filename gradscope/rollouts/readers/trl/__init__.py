"""TRL's completion tables, the trainer state beside them, and what its blocks of rows mean."""
