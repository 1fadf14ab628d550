"""Three ways from a plan to one Gram matrix of score vectors: `loop`, `stream` and `prompt`."""
