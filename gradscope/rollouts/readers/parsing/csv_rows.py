"""Rows of CSV, each bounded: a quote that is not closed costs its row and not the rest of the file."""

from __future__ import annotations

import csv
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, in_mib, most
from gradscope.results.source import TWICE, twice_in
from gradscope.rollouts.readers.parsing.jsonl import BOM, COMPRESSED, read_bytes
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

_WHY = {
    "',' expected after '\"'": "a quote is not closed, or text follows one",
    "unexpected end of data": "a quote is not closed",
    "new-line character seen in unquoted field - do you need to open the file in universal-newline mode?": "a carriage "
    "return stands in it",
}
"""What Python's reader says, in words for people."""


def read_csv(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file after its header, each with the ``file:line`` at which it starts.

    Args:
        path: An existing file.
        quarantine: Takes what is no row.

    Yields:
        Location and cells, all of them text.

    Raises:
        InputError: The file cannot be read, or so many quotes are not closed that the same lines were read too often.
    """
    rows = CsvRows(path, read_bytes(path))
    for number, why in rows.before:
        quarantine.add(why, f"{path}:{number}")
    while (found := rows.row()) is not None:
        number, row, num_bytes = found
        quarantine.passed(0 if path.suffix in COMPRESSED else num_bytes)
        if isinstance(row, str):
            quarantine.add(row, f"{path}:{number}")
        else:
            yield f"{path}:{number}", row


class CsvRows:
    """The rows of a file behind its header, and the way back to lines where a row turns out to be none."""

    def __init__(self, path: Path, lines: Iterator[bytes]) -> None:
        """The header is read, and with it all before it that is none.

        Args:
            path: The file, for messages.
            lines: What is read, from the start of the file on.
        """
        csv.field_size_limit(sys.maxsize)  # completions outgrow the default of 128 KiB; rows have a limit of their own
        self._path = path
        self._source = lines
        self._waiting: deque[bytes] = deque()
        self._taken: list[bytes] = []
        self.num_lines = 0
        """Lines of the rows so far."""
        self._size = 0
        self._most = self._left = most(MOST_ROW)
        self._rows = csv.reader(self._lines(), strict=True)
        self.before: list[tuple[int, str]] = []
        """Lines before the header that are no row, each with its number and the reason."""
        self.header: tuple[str, ...] = ()
        """The names of the columns."""
        while (found := self._cells()) is not None:
            number, cells, _ = found
            if not isinstance(cells, str):
                self.header = tuple(cells)
                break
            self.before.append((number, cells))
        self.twice = twice_in(self.header)
        """A name that two columns have."""

    def row(self) -> tuple[int, dict[str, str] | str, int] | None:
        """The next row.

        Returns:
            The number of its first line, its cells or why it has none, and its bytes; None after the last.

        Raises:
            InputError: So many quotes are not closed that the same lines were read too often.
        """
        found = self._cells()
        return None if found is None else (found[0], self._judged(found[1]), found[2])

    def alone(self, lines: bytes) -> dict[str, str] | str:
        """The row in some lines that hold one, or why it has no cells."""
        text = lines.decode("utf-8", "surrogateescape")
        return self._judged(next(csv.reader([text], strict=True), []))

    def _judged(self, cells: list[str] | str) -> dict[str, str] | str:
        """Cells by the names of their columns, or why they are no row."""
        if isinstance(cells, str):
            return cells
        if not any(cells):
            return "the line is blank"
        if len(cells) != len(self.header):
            return "the row has more or fewer cells than the header"
        if any("\udc80" <= letter <= "\udcff" for cell in cells for letter in cell):
            return "the line is not UTF-8"
        if self.twice is not None:
            return TWICE.format(self.twice)
        return dict(zip(self.header, cells, strict=True))

    def skip(self, num_lines: int) -> None:
        """Pass over lines that somebody else has read from the source."""
        self.num_lines += num_lines

    def given_back(self) -> bytes:
        """What was read from the source and is of no row yet."""
        data = b"".join(self._waiting)
        self._waiting.clear()
        return data

    def _lines(self) -> Iterator[str]:
        while True:
            line = self._waiting.popleft() if self._waiting else next(self._source, None)
            if line is None:
                return
            if not self.num_lines and not self._taken:
                line = line.removeprefix(BOM)
            self._taken.append(line)
            self._size += len(line)
            if self._size > self._most:
                raise csv.Error(f"it is longer than {in_mib(self._most)}")
            yield line.decode("utf-8", "surrogateescape")

    def _cells(self) -> tuple[int, list[str] | str, int] | None:
        first = self.num_lines + 1
        try:
            cells = next(self._rows)
        except StopIteration:
            return None
        except csv.Error as error:
            size = len(self._taken[0])
            return first, self._given_up(str(error)), size
        size = self._size
        self.num_lines += len(self._taken)
        self._forget()
        return first, cells, size

    def _given_up(self, why: str) -> str:
        """Go on at the line after the one that a row began with."""
        again = self._taken[1:]
        self._left -= sum(map(len, again))
        if self._left < 0:
            raise InputError(
                f"{self._path} has so many quotes that are not closed that its rows cannot be told apart.",
                hint="Write the file again with a CSV library.",
            )
        self._waiting.extendleft(reversed(again))
        self.num_lines += 1
        self._forget()
        self._rows = csv.reader(self._lines(), strict=True)
        return f"the row is not CSV: {_WHY.get(why, why)}"

    def _forget(self) -> None:
        self._taken.clear()
        self._size = 0
