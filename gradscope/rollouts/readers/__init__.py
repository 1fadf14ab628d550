"""A declaration for each format: from the files of a trainer or an evaluation to a run."""
