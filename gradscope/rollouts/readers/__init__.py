"""One file a trainer: from its files to a :class:`~gradscope.rollouts.run.Run`."""
