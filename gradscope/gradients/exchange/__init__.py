"""One Gram matrix by several processes: each runs some of the rows, and each adds up some of every parameter."""
