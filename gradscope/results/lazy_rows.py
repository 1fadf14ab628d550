"""A long table of a result as columns, so that a million rows are no objects until somebody asks for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, overload

Row = dict[str, Any]


class RowValues(Protocol):
    """The values of a column: a NumPy array, or anything else that slices and becomes a list of plain values."""

    def __len__(self) -> int:
        """How many rows."""

    def __getitem__(self, rows: slice) -> RowValues:
        """Some of the rows."""

    def tolist(self) -> list[Any]:
        """The plain values."""


class LazyRows(Sequence[Row]):
    """Rows of named values, made from columns when they are asked for."""

    def __init__(self, columns: Mapping[str, RowValues]) -> None:
        """A table.

        Args:
            columns: Name -> values, all of one length.
        """
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, int):
            at = range(len(self))[index]
            return self[at : at + 1][0]
        values = [column[index].tolist() for column in self._columns.values()]
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*values, strict=True)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyRows) and self[:] == other[:]

    __hash__ = None  # type: ignore[assignment]  # its columns may be arrays

    def __repr__(self) -> str:
        """How long it is, and of what."""
        return f"<{len(self)} rows of {', '.join(self._columns)}>"
