"""Before a run: its configuration, arguments of TRL, processes, provenance, checkpoints."""
