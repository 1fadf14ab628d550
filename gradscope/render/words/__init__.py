"""Numbers, labels and hostile text, worded alike for every kind of output."""
