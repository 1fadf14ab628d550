"""Unusable rows are set aside and counted by reason, with the location of the first; never dropped silently.

A watched log also reports how many bytes of its files were read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.progress import ProgressCallback
from gradscope.results import source as sources
from gradscope.say import counted

_Row = TypeVar("_Row")


class UnusableRowError(Exception):
    """A row holds no rollout; the message is the reason for the quarantine."""


class QuarantineLog:
    """Collects rows that are set aside while a log is read."""

    def __init__(self) -> None:
        self._by_reason: dict[str, tuple[int, str]] = {}
        self._files: dict[str, set[str]] = {}
        self._lost: dict[str, InputError] = {}
        self._lines: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # lines that were read, and rollouts in them
        self._are_lines = False

    def add(self, reason: str, location: str, num_rows: int = 1) -> None:
        """Set rows aside for a reason; ``location`` is the ``file:line`` of the first, counted from 1."""
        count, first = self._by_reason.get(reason, (0, location))
        self._by_reason[reason] = (count + num_rows, first)
        self._files.setdefault(reason, set()).add(location.rpartition(":")[0])
        self._lines[reason] += num_rows * self._are_lines

    def count_read(self, num_bytes: int, num_rows: int = 1) -> None:
        """Called by readers with the bytes of their file that they have read, and the rows in them."""

    def add_unreadable(self, error: InputError) -> None:
        """Set aside a file, or its rest, that cannot be read, so that its number of rows is unknown."""
        self._lost.setdefault(error.message, error)

    def readable(self, rows: Iterable[_Row]) -> Iterator[_Row]:
        """Rows of a file as far as they can be read; a rest that cannot is set aside."""
        try:
            yield from rows
        except InputError as error:
            self.add_unreadable(error)

    def for_lines(self) -> QuarantineLog:
        """The same log for files whose lines hold many rollouts each: how many one has that is set aside is unknown."""
        lines = copy(self)
        lines._are_lines = True
        return lines

    def count_rollouts(self, num_rollouts: int, num_lines: int = 1) -> None:
        """Count the rollouts in lines that were read; a negative number takes back those that do not count."""
        self._held.update(lines=num_lines, rollouts=num_rollouts)

    def damage_reporter(self, file: Path) -> Callable[[str], None]:
        """A function that reports damage within a file of metrics as a part of the run that cannot be read."""
        return lambda damage: self.add_unreadable(InputError(f"{file}: {damage}.", hint="Copy the file again."))

    def add_unreadable_metrics(self, lines: QuarantineLog) -> None:
        """Set lines of metrics aside as lost, except blank ones and a last one that may still be being written."""
        for entry in lines.result().reasons:
            if entry.reason not in (sources.CUT_OFF, sources.BLANK):
                count = counted(entry.num_rows, "line")
                message = f"{count} of metrics cannot be used: {entry.reason} ({entry.where})."
                self.add_unreadable(InputError(message, hint="Copy the file again."))
        self._lost |= lines._lost

    def include(self, other: QuarantineLog, order: Mapping[str, int]) -> None:
        """Add the rows that another log set aside; ``order`` of the files decides which of two locations is first."""

        def order_of(location: str) -> tuple[int, int]:
            file, _, line = location.rpartition(":")
            return order.get(file, 0), int(line) if line.isdecimal() else 0

        for reason, (count, first) in other._by_reason.items():
            num_rows, earliest = self._by_reason.get(reason, (0, first))
            self._by_reason[reason] = (num_rows + count, min(earliest, first, key=order_of))
            self._files[reason] = self._files.get(reason, set()) | other._files[reason]
        self._lost |= other._lost
        self._lines.update(other._lines)
        self._held.update(other._held)

    def raise_unreadable(self, earlier: QuarantineLog | None = None) -> None:
        """Raise the error of the first file that could not be read, if there is one that ``earlier`` does not have."""
        for message, error in self._lost.items():
            if earlier is None or message not in earlier._lost:
                raise error

    def result(self) -> sources.Quarantine:
        """The rows set aside by reason, the most frequent first."""
        ordered = sorted(self._by_reason.items(), key=lambda item: (-item[1][0], item[0]))
        mean = self._held["rollouts"] / self._held["lines"] if self._held["lines"] else 1.0  # of a line that was read
        reasons = tuple(
            sources.QuarantineReason(
                reason=reason,
                num_rows=count,
                first=first,
                num_rollouts=0
                if reason == sources.BLANK
                else count - self._lines[reason] + round(self._lines[reason] * mean),
                num_files=len(self._files[reason]),
            )
            for reason, (count, first) in ordered
        )
        return sources.Quarantine(
            num_rows=sum(entry.num_rows for entry in reasons),
            num_rollouts=sum(entry.num_rollouts for entry in reasons),
            reasons=reasons,
            lost=tuple(self._lost),
        )


def with_set_aside(source: sources.Source, log: QuarantineLog) -> sources.Source:
    """A source with the rows and files that ``log`` set aside, too."""
    return replace(source, quarantined=sources.set_aside_together([source.quarantined, log.result()]))


def refuse_quarantined(quarantine: sources.Quarantine) -> None:
    """Turn rows that were set aside, and files that cannot be read, into an InputError."""
    if quarantine.lost:
        raise InputError(quarantine.lost[0], hint="Copy the file again, or leave out --strict to go on without it.")
    if quarantine.num_rows:
        reason = quarantine.reasons[0]
        raise InputError(
            f"Rows that cannot be used: {quarantine.num_rows}; first {reason.first}: {reason.reason}.",
            hint="Mend the log, or leave out --strict to set these rows aside and count them.",
        )


def filter_caveat(filter: str) -> str:
    """A sentence for ``Source.missing`` where a trainer's filter may have removed dead groups before it wrote the log.

    Example:
        >>> filter_caveat("dynamic_sample drops groups of equal rewards")
        'dynamic_sample drops groups of equal rewards; the share of dead groups in this log is then a lower bound.'
    """
    return f"{filter}; {sources.LOWER_BOUND}"


TEXT_ONLY = "The log holds text without token ids: it serves degeneracy, passk and check, not rank or replay."
"""For ``Source.missing``."""

BRANCHED = (
    "Some rollouts are several sequences (branches of a trace, outputs of a session): the reward of each counts once, "
    "and the tokens of all its sequences."
)
"""For ``Source.inferred``."""

_MEGABYTE = 1 << 20


class WatchedLog(QuarantineLog):
    """The quarantine of a reading that reports its progress."""

    def __init__(self, progress: ProgressCallback, files: Sequence[Path]) -> None:
        """Starts at zero; ``progress`` is called after each megabyte of the files, each of which counts once."""
        super().__init__()
        self._progress = progress
        self._num_bytes = sum(file.stat().st_size for file in files)
        self._read = Counter(due=_MEGABYTE)  # bytes and rows, and the bytes from which on they are reported again

    @property
    def num_read(self) -> int:
        """Bytes that were read."""
        return self._read["bytes"]

    def count_read(self, num_bytes: int, num_rows: int = 1) -> None:
        """Count the bytes, and report them after each megabyte."""
        self._read["rows"] += num_rows
        self._read["bytes"] += num_bytes
        if self.num_read >= self._read["due"]:
            self._read["due"] = self.num_read + _MEGABYTE
            done = min(self.num_read, self._num_bytes)
            self._progress(done // _MEGABYTE, self._num_bytes // _MEGABYTE, f"MB read, {self._read['rows']:,} rows")
