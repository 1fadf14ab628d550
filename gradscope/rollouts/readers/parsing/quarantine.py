"""Rows that cannot be used are set aside and counted by reason, with the place of the first; never dropped silently."""

from __future__ import annotations

from gradscope.errors import InputError
from gradscope.results.source import Quarantine, QuarantineReason

BROKEN_ADVANTAGE = "the advantage is not finite"
"""Of a row whose reward can be used; it stays in its group."""


class UnusableRowError(Exception):
    """A row holds no rollout; its message is the reason for the quarantine, in a few words."""


class QuarantineLog:
    """Collects rows that are set aside while a log is read."""

    def __init__(self) -> None:
        self._by_reason: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, location: str) -> None:
        """Set a row aside: why, in a few words, and its ``file:line``, counted from 1."""
        count, first = self._by_reason.get(reason, (0, location))
        self._by_reason[reason] = (count + 1, first)

    def result(self) -> Quarantine:
        """What was set aside, by reason, the most frequent first."""
        ordered = sorted(self._by_reason.items(), key=lambda item: (-item[1][0], item[0]))
        reasons = tuple(
            QuarantineReason(reason=reason, num_rows=count, first=first) for reason, (count, first) in ordered
        )
        return Quarantine(num_rows=sum(reason.num_rows for reason in reasons), reasons=reasons)


def refuse_quarantined(quarantine: Quarantine) -> None:
    """Turn rows that were set aside into an error.

    Raises:
        InputError: There are such rows.
    """
    if quarantine.num_rows:
        reason = quarantine.reasons[0]
        raise InputError(
            f"Rows that cannot be used: {quarantine.num_rows}; first {reason.first}: {reason.reason}.",
            hint="Mend the log, or leave out --strict to set these rows aside and count them.",
        )
