"""Tables with one row a rollout, whoever wrote them: columns recognized, by their names and by what they hold."""
