"""`gradscope report`: one run as twelve answered questions, several runs as an index."""
