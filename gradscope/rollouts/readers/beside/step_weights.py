"""Checkpoints of trainers that number their steps: folders that hold, somewhere inside, a Hugging Face model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.checkpoint_folders import find_base, find_tokenizer, weights_at, with_initial
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.run import WeightsRef


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """Where a trainer saves its weights."""

    patterns: Sequence[str]
    """Globs from a folder of the run to the checkpoints, whose names end in their number of updates."""
    inside: Sequence[str]
    """Globs from a checkpoint to the model; the first that holds whole weights counts, the checkpoint itself last."""
    merge: Callable[[Path], str]
    """What to run for a checkpoint that holds no model yet, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWeights:
    """The weights of a run."""

    weights: tuple[WeightsRef, ...] = ()
    """Those that can be read, by number of updates."""
    unmerged: dict[int, Reason] = field(default_factory=dict)
    """Number of updates -> what to run before those can be read."""
    tokenizer: Path | None = None
    """A folder that holds the tokenizer."""


def saved_weights(request: ReadRequest, layout: CheckpointLayout, roots: Iterable[Path]) -> SavedWeights:
    """The checkpoints below some folders, with what ``--initial`` gives.

    Args:
        roots: The folders of the run; where two have a checkpoint of the same number the first counts.

    Returns:
        The weights, and what keeps others from being read.
    """
    found: dict[int, WeightsRef] = {}
    unmerged: dict[int, Reason] = {}
    for root in roots:
        for number, folder in numbered_folders(root, layout.patterns):
            weights = None if number in found else _model_in(folder, number, layout, request)
            if weights is not None:
                found[number] = weights
            elif number not in found:
                text = f"{folder.name} holds no Hugging Face model"
                unmerged.setdefault(number, Reason("weights_unmerged", text, hint=layout.merge(folder)))

    def base_of(adapter: Path) -> str | None:
        return request.model or find_base(adapter, adapter.parent)

    weights_of_all = with_initial((found[number] for number in sorted(found)), request.initial, base_of)
    readable = {weights.num_updates for weights in weights_of_all}
    bases = [Path(weights.base) for weights in weights_of_all if weights.base]
    model = None if request.model is None else Path(request.model)
    return SavedWeights(
        weights=weights_of_all,
        unmerged={number: reason for number, reason in unmerged.items() if number not in readable},
        tokenizer=find_tokenizer(*(weights.path for weights in weights_of_all), request.initial, *bases, model),
    )


def numbered_folders(root: Path, patterns: Iterable[str]) -> Iterator[tuple[int, Path]]:
    """The checkpoints below a folder; where a pattern meets those of several runs, none of them.

    Yields:
        The number of updates, and the folder.
    """
    for pattern in patterns:
        folders = [folder for folder in sorted(root.glob(pattern)) if folder.is_dir()]
        if len({folder.parent for folder in folders}) == 1:
            numbered = ((re.search(r"([0-9]+)$", folder.name), folder) for folder in folders)
            yield from ((int(number[1]), folder) for number, folder in numbered if number)


def _model_in(folder: Path, num_updates: int, layout: CheckpointLayout, request: ReadRequest) -> WeightsRef | None:
    for inner in (*(inner for pattern in layout.inside for inner in sorted(folder.glob(pattern))), folder):
        try:
            return weights_at(
                inner,
                num_updates=num_updates,
                base_of=lambda adapter: request.model or find_base(adapter, folder),
            )
        except InputError:  # a configuration and a tokenizer alone, or pickles
            continue
    return None
