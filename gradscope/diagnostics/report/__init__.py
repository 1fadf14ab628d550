"""`gradscope report`: one run as fifteen answered questions, several runs as an index."""
