"""Made-up runs of verl, prime-rl and NeMo-RL: a trainer of a few lines each, which writes the log of the real one."""
