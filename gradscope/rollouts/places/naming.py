"""What was read from a copy says where it lies: the URL, as it was typed but for its credentials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradscope.copies import as_named
from gradscope.rollouts.places.fetch import awaited_note
from gradscope.rollouts.run import Run


def as_named_run(run: Run) -> Run:
    """The run, whose source names URLs in place of their copies and says what is not copied yet."""
    source = run.source
    quarantined = source.quarantined
    reasons = tuple(replace(reason, first=as_named(reason.first)) for reason in quarantined.reasons)
    return replace(
        run,
        source=replace(
            source,
            path=as_named(source.path),
            recognized=as_named(source.recognized),
            files=tuple(map(as_named, source.files)),
            inferred=(*map(as_named, source.inferred), *awaited_note(run.path)),
            missing=tuple(map(as_named, source.missing)),
            quarantined=replace(quarantined, reasons=reasons, lost=tuple(map(as_named, quarantined.lost))),
        ),
        unmerged_weights={
            number: replace(reason, hint=as_named(reason.hint)) for number, reason in run.unmerged_weights.items()
        },
    )


def names_of(paths: Sequence[Path]) -> list[str]:
    """What runs are called beside each other: as many last parts of their paths as tell them apart.

    Args:
        paths: Folders or files.

    Returns:
        A name each, with numbers where the same path stands twice.

    Example:
        >>> names_of([Path("/data/a/run"), Path("/data/b/run")])
        ['a/run', 'b/run']
    """
    parts = [path.absolute().parts for path in paths]
    names: list[str] = []
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = [as_named("/".join(part[-length:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({place})" for place, name in enumerate(names, start=1)]
