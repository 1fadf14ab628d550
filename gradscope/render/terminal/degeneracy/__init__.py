"""The tables of `gradscope degeneracy`."""
