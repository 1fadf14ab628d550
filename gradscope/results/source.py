"""What a result is of: its log with what was inferred, missing and set aside, and which step, advantage and matrix."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.say import counted

CUT_OFF, BLANK = "the last line is cut off", "the line is blank"
"""Reasons of lines that may be complete a moment later, and that hold nothing."""
BROKEN_ADVANTAGE = "the advantage is not finite, and only the reward is used"
"""The reason of a row that stays in its group."""
BROKEN_REWARD = "the reward is not finite"
TWICE = "two columns have the name {!r}"
"""The reason for setting aside a row, or a table, whose cells have an unknown meaning."""

LOWER_BOUND = "the share of dead groups in this log is then a lower bound."
"""How a sentence of ``Source.missing`` ends where a filter of the trainer may have removed dead groups."""


def first_duplicate(names: Sequence[str]) -> str | None:
    """The first name that occurs twice; None where each occurs once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


class QuarantineReason(Struct, frozen=True, kw_only=True):
    """Rows of a log that could not be used, for one reason."""

    reason: str  # why, in a few words
    num_rows: int  # how many rows
    first: str  # the first of them, as ``file:line`` (line or row counted from 1)
    num_rollouts: int = 0
    """How many rollouts these rows hold: a row is one, and a line of a batch as many as the other lines have."""
    num_files: int = 1  # how many files they are in: a column that one file lacks hides behind the first row of another

    @property
    def counted(self) -> str:
        """How many rows, and rollouts where those are others, in words."""
        return _counted(self.num_rows, self.num_rollouts)

    @property
    def where(self) -> str:
        """The location of the first, and the number of files."""
        return f"first at {self.first}{f', in {self.num_files} files' if self.num_files > 1 else ''}"


class Quarantine(Struct, frozen=True, kw_only=True):
    """All rows that were set aside, counted by reason."""

    num_rows: int = 0  # how many rows in all
    num_rollouts: int = 0  # how many rollouts they hold
    reasons: tuple[QuarantineReason, ...] = ()  # counted apart, most frequent first
    lost: tuple[str, ...] = ()
    """Files and steps that could not be read, or not to their end, one sentence each: how many rows they have is not
    known."""

    @property
    def counted(self) -> str:
        """How many rows, and rollouts where those are others, in words."""
        return _counted(self.num_rows, self.num_rollouts)


def _counted(rows: int, rollouts: int) -> str:
    if rollouts in (rows, 0):  # blank lines hold none
        return counted(rows, "row")
    return f"{counted(rows, 'line')} of some {rollouts:,} rollouts"


def merged(sources: Sequence[Source]) -> Source:
    """Several evaluations as one input: read and set-aside rows in all, without notes on each."""
    formats = tuple(dict.fromkeys(source.format for source in sources))
    return Source(
        path=os.path.commonpath([source.path for source in sources]) or ".",
        format=formats[0],
        recognized=f"{len(sources)} evaluations ({', '.join(formats)})",
        files=tuple(file for source in sources for file in source.files),
        num_rows=sum(source.num_rows for source in sources),
        quarantined=set_aside_together([source.quarantined for source in sources]),
    )


def set_aside_together(parts: Sequence[Quarantine]) -> Quarantine:
    """The set-aside rows of several inputs; for each reason the location in the first of them."""
    reasons: dict[str, QuarantineReason] = {}
    for reason in (reason for part in parts for reason in part.reasons):
        first = reasons.get(reason.reason, replace(reason, num_rows=0, num_rollouts=0, num_files=0))
        reasons[reason.reason] = replace(
            first,
            num_rows=first.num_rows + reason.num_rows,
            num_rollouts=first.num_rollouts + reason.num_rollouts,
            num_files=first.num_files + reason.num_files,
        )
    return Quarantine(
        num_rows=sum(part.num_rows for part in parts),
        num_rollouts=sum(part.num_rollouts for part in parts),
        reasons=tuple(sorted(reasons.values(), key=lambda reason: (-reason.num_rows, reason.reason))),
        lost=tuple(dict.fromkeys(text for part in parts for text in part.lost)),
    )


BY_NUMBER = "their numbers"  # how prompts are told apart that nothing names: those of lines, in lists, or as keys
FIRST_ONLY = "Attempts at a prompt end once one passes: only the first of each counts."


class Source(Struct, frozen=True, kw_only=True):
    """One input as its reader understood it."""

    not_in_document = ("digests",)

    path: str  # the path as given
    format: str  # name of the reader, for example ``trl``
    recognized: str  # its format, in words: "TRL output_dir, 20 files of completions"
    files: tuple[str, ...] = ()  # files that were read, in order
    digests: tuple[str, ...] = ()
    """The SHA-256 of each, where they were read on another machine; else empty."""
    kind: Literal["rollouts", "metrics"] = "rollouts"
    """Its content: rollouts, with the trainer's metrics or without them, or metrics alone."""
    num_rows: int = 0  # rows that were used, each a rollout; of metrics alone rows of them
    inferred: tuple[str, ...] = ()  # inferences of the reader that the log does not state, one sentence each, with how
    missing: tuple[str, ...] = ()
    """Data that the log lacks and a command may need, one sentence each, with the setting that logs them."""
    quarantined: Quarantine = Quarantine()  # rows that were set aside
    unfinished: str = ""
    """How an evaluation ended and how many of its samples there are, where it did not succeed: "was cancelled: ..."."""

    @property
    def filters(self) -> tuple[str, ...]:
        """The missing data where a filter of the trainer may have removed dead groups."""
        return tuple(sentence for sentence in self.missing if sentence.endswith(LOWER_BOUND))

    @property
    def is_numbered(self) -> bool:
        """Whether numbers alone tell prompts apart."""
        return any(BY_NUMBER in sentence for sentence in self.inferred)

    @property
    def broken_advantages(self) -> QuarantineReason | None:
        """The rows whose logged advantage is NaN or infinite; None where no such row was set aside."""
        return self._set_aside(BROKEN_ADVANTAGE)

    @property
    def broken_rewards(self) -> QuarantineReason | None:
        """The rows whose reward is NaN or infinite; None where no such row was set aside."""
        return self._set_aside(BROKEN_REWARD)

    def _set_aside(self, reason: str) -> QuarantineReason | None:
        return next((entry for entry in self.quarantined.reasons if entry.reason == reason), None)

    @property
    def frac_set_aside(self) -> Estimate:
        """Share of the rollouts that were set aside; undefined where files could not be read to their end."""
        if self.quarantined.lost:
            return Estimate.undefined_because(f"parts of the log could not be read: {self.quarantined.lost[0]}")
        broken = self.broken_advantages  # these rows are used, too, several of them perhaps as one rollout
        number = self.num_rows + self.quarantined.num_rollouts - (broken.num_rollouts if broken else 0)
        number = max(number, self.quarantined.num_rollouts)
        return Estimate.exact(self.quarantined.num_rollouts / max(1, number), num_units=number)


RowKind = Literal["rollout", "group", "token", "weight", "hidden", "logit", "advantage", "update"]
"""Which matrix `rank` looks at: rows of ``rollout``, ``group`` and ``token`` are gradients by all parameters, those of
``weight`` the outputs of one matrix's; ``hidden`` and ``logit`` are gradients by the last hidden state and by the
logits, of tokens and of rollouts; ``advantage`` is the advantages themselves, rollouts by tokens; ``update`` the change
of a weight."""


class OfStep(Struct, frozen=True, kw_only=True):
    """A record of one step."""

    step: int  # the trainer's step


class OfAdvantage(OfStep, frozen=True, kw_only=True):
    """A record of one step under one advantage."""

    advantage: str  # ``logged``, or the formulation
