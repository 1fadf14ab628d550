"""`gradscope spike`: the step that stands out, and the parts of its gradient."""
