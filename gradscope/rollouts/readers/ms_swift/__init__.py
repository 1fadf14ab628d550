"""ms-swift's log of completions."""
