"""The tables of `gradscope rank`."""
