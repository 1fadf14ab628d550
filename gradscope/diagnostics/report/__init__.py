"""`gradscope report`: one run as eleven answered questions, several runs as an index."""
