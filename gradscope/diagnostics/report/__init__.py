"""`gradscope report`: one run as sixteen answered questions, several runs as an index."""
