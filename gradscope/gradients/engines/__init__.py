"""Three ways from a plan to one Gram matrix of score vectors: `loop`, `stream`, `prompt`; one by several processes."""
