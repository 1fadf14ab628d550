"""slime's dumps of rollouts, a file of ``torch.save`` for each step or evaluation.

They are read as plain data: no code in them is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import open_file
from gradscope.outside.torch_archive import read_archive
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import Row


def is_of(file: Path, *, evaluation: bool) -> bool:
    """Whether a file is of an evaluation or not, and no bare pickle, as older versions wrote, but a zip."""
    with open_file(file) as stream:  # perhaps cut off
        return (re.search(r"eval_[0-9]+\.pt$", file.name) is not None) == evaluation and stream.read(1) != b"\x80"


def holds_samples(file: Path) -> bool:
    """Whether a file is one of those that slime writes."""
    with suppress(InputError):
        return isinstance(parse.mapping_of(read_archive(file)).get("samples"), list)
    return False


def _samples_in(file: Path, quarantine: QuarantineLog) -> list[Row]:
    """The samples of a file, a bad one without cells, each with its own ``rollout_id`` as ``cut_from``."""
    document = parse.mapping_of(read_archive(file))
    samples = list(map(parse.mapping_of, parse.list_of(document.get("samples"))))
    quarantine.count_read(file.stat().st_size, len(samples))
    step = {"rollout_id": document.get("rollout_id")}
    return [
        (f"{file}:{number}", {**sample, "cut_from": parse.whole_number(sample.get("rollout_id")), **step})
        for number, sample in enumerate(samples, start=1)
    ]


def training_rows(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, those into which a rollout was cut as one with the others as its ``earlier`` ones.

    Where such have several rewards, as those of several agents, each counts, and their common index tells nothing.
    """
    rollouts: dict[Any, list[Row]] = {}
    for location, sample in _samples_in(file, quarantine):
        origin: tuple[Any, ...] = (location,)
        if sample["cut_from"] is not None:
            origin = (sample["cut_from"], parse.whole_number(sample.get("group_index")))
        rollouts.setdefault(origin, []).append((location, sample))
    for samples in rollouts.values():
        parts: dict[str, list[Row]] = {}
        for location, sample in samples:
            reward = parse.digest(sample.get("reward")) if len(samples) > 1 else ""
            parts.setdefault(reward, []).append((location, sample))
        for *earlier, (location, sample) in parts.values():
            if len(parts) > 1:
                sample["index"] = None
            sample["earlier"] = [cells for _, cells in earlier]
            yield location, sample


def evaluation_rows(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of an evaluation; slime numbers no group, and each data set's samples from 0."""
    groups: dict[tuple[int, str], int] = {}
    dataset, before = 0, -1
    for location, sample in _samples_in(file, quarantine):
        index = parse.whole_number(sample.get("index")) or 0
        dataset, before = dataset + (index < before), index
        sample["group_index"] = groups.setdefault((dataset, parse.digest(sample.get("prompt"))), len(groups))
        yield location, sample
