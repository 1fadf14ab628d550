"""`gradscope passk`: unbiased pass@k, pairs of files, and the verdict on reach."""
