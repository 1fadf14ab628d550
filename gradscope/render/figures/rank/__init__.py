"""The figures of `gradscope rank`."""
