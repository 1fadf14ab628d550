"""`gradscope degeneracy`: groups without a gradient, why, what they cost, and what would change it."""
