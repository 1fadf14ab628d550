"""Tables with one row a rollout, whoever wrote them: columns recognized, and reduced by DuckDB where they are large."""
