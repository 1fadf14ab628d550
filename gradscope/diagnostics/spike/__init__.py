"""`gradscope spike`: the step that stands out, and what its gradient is made of."""
