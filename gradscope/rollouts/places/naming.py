"""What was read from a copy says where it lies: the URL, as it was typed but for its credentials."""

from __future__ import annotations

from dataclasses import replace

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
