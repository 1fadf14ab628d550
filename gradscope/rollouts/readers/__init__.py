"""One declaration a format: from what a trainer or an evaluation wrote to a run."""
