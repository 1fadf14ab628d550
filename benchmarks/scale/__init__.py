"""Time and memory of ``gradscope degeneracy`` on large logs of each kind, beside a bare scan of the same files."""
