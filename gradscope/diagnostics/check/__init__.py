"""`gradscope check`: requirements held against a run, against chosen steps of it, and against a baseline file."""
