"""Rows of CSV, each bounded: a quote that is not closed costs its row and not the rest of the file."""

from __future__ import annotations

import csv
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, in_mib, most
from gradscope.rollouts.readers.parsing.jsonl import BOM, COMPRESSED, read_bytes
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

TWICE = "two columns have the name {!r}"
"""Why a row is set aside of which it is not known what its cells mean."""
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
    csv.field_size_limit(sys.maxsize)  # completions outgrow the default of 128 KiB, and rows have a limit of their own
    lines = _Lines(path)
    header: list[str] | None = None
    twice = None
    while (found := lines.row()) is not None:
        number, cells, num_bytes = found
        location = f"{path}:{number}"
        quarantine.passed(0 if path.suffix in COMPRESSED else num_bytes)
        if isinstance(cells, str):
            quarantine.add(cells, location)
        elif header is None:
            header, twice = cells, twice_in(cells)
        elif not any(cells):
            quarantine.add("the line is blank", location)
        elif len(cells) != len(header):
            quarantine.add("the row has more or fewer cells than the header", location)
        elif any("\udc80" <= letter <= "\udcff" for cell in cells for letter in cell):
            quarantine.add("the line is not UTF-8", location)
        elif twice is not None:
            quarantine.add(TWICE.format(twice), location)
        else:
            yield location, dict(zip(header, cells, strict=True))


def twice_in(names: Sequence[str]) -> str | None:
    """The first name that stands there twice; None where each is there once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


class _Lines:
    """The lines of a file, which can be gone back to where a row turns out to be none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = read_bytes(path)
        self._waiting: deque[bytes] = deque()
        self._taken: list[bytes] = []
        self._number = self._size = 0
        self._most = self._left = most(MOST_ROW)
        self._rows = csv.reader(self, strict=True)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._lines)
        if not self._number and not self._taken:
            line = line.removeprefix(BOM)
        self._taken.append(line)
        self._size += len(line)
        if self._size > self._most:
            raise csv.Error(f"it is longer than {in_mib(self._most)}")
        return line.decode("utf-8", "surrogateescape")

    def row(self) -> tuple[int, list[str] | str, int] | None:
        """The number of the next row's first line, its cells or why there are none, its bytes; None after the last."""
        first = self._number + 1
        try:
            cells = next(self._rows)
        except StopIteration:
            return None
        except csv.Error as error:
            size = len(self._taken[0])
            return first, self._given_up(str(error)), size
        size = self._size
        self._number += len(self._taken)
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
        self._number += 1
        self._forget()
        self._rows = csv.reader(self, strict=True)
        return f"the row is not CSV: {_WHY.get(why, why)}"

    def _forget(self) -> None:
        self._taken.clear()
        self._size = 0
