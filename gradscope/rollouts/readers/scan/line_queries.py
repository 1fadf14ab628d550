"""Queries over the lines of blocks, planned once: to plan one takes DuckDB about a tenth of the time of a block."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

NAME = "lines"
"""The table that a query is over."""
_MOST_PLANNED = 32
"""Plans that are kept: a log may have lines of ever other keys."""


class LineQueries:
    """What a connection is asked of one block after the other."""

    def __init__(self, connection: Any) -> None:
        """Nothing is planned yet.

        Args:
            connection: A connection of DuckDB's that nothing else uses meanwhile.
        """
        self.connection = connection
        self._lines = _Lines()
        self._planned: dict[str, str] = {}
        self._names: tuple[str, ...] = ()

    def rows(self, query: str, lines: pa.Table) -> pa.Table:
        """The rows of a query over some lines.

        Args:
            query: Reads the table ``lines``.
            lines: What it is over.

        Returns:
            The rows.
        """
        self._lines.table = lines
        try:
            return self.connection.sql(f"EXECUTE {self._plan_of(query)}").to_arrow_table()
        finally:
            del self._lines.table

    def _plan_of(self, query: str) -> str:
        if query not in self._planned:
            names = tuple(self._lines.table.schema.names)
            if names != self._names:
                self.connection.register(NAME, self._lines)
                self._names = names
                self._planned.clear()
            if len(self._planned) == _MOST_PLANNED:
                self._planned.clear()
            name = f"over_lines_{len(self._planned)}"
            self.connection.execute(f"PREPARE {name} AS {query}")
            self._planned[query] = name
        return self._planned[query]


class _Lines:
    """The lines of the current block, which a plan reads anew each time."""

    table: pa.Table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.table.schema.__arrow_c_schema__()
