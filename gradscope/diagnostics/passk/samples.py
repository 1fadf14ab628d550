"""Files of samples reduced to two numbers a prompt: n samples, c of them correct."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.metrics.outcomes.groups import binary_threshold, passes
from gradscope.metrics.uncertainty.studentized import cluster_sums
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.source import Source
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.rollouts.run_folder import heldout_path, manifest_path
from gradscope.rollouts.sources.fetch import fetched

Counts = NDArray[np.int64]

_WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of one policy."""

    name: str  # what tables call it
    source: Source  # where they came from
    prompts: tuple[str, ...]  # prompt ids, [P], in the order of the file
    num_samples: Counts  # n, [P]
    num_correct: Counts  # c, [P]
    num_missing: int  # samples without a verdict; they are not counted in n


def sample_files(path: str | Path, progress: ProgressCallback = no_progress) -> tuple[Path, ...]:
    """The held-out samples of a run folder, before and after training; of any other path the path itself."""
    folder = fetched(path, progress)
    heldout = tuple(file for when in _WHEN if (file := heldout_path(folder, when)).is_file())
    return heldout or (folder,)


def read_samples(
    path: str | Path,
    *,
    success_threshold: float | None = None,
    read: ReadOptions | None = None,
    progress: ProgressCallback = no_progress,
) -> Samples:
    """The samples of one file, counted by prompt."""
    # Held-out samples of a run of ours say themselves which are correct; no threshold is needed.
    read, file = read or ReadOptions(), fetched(path)
    if success_threshold is None:
        read = with_own_verdicts(file, read)
    run = read_run(file, read, rewards_only=True, progress=progress)
    return samples_of_run(run, name=file.name, success_threshold=success_threshold)


def with_own_verdicts(path: Path, read: ReadOptions) -> ReadOptions:
    """How to read held-out samples of a run of ours, which say themselves which are correct; others as they are."""
    folder = path.parent.parent
    is_heldout = manifest_path(folder).is_file() and path in [heldout_path(folder, when) for when in _WHEN]
    if not is_heldout or read.columns != ColumnNames():
        return read
    return replace(read, columns=ColumnNames(reward="correct"))


def samples_of_run(
    run: Run, *, name: str, success_threshold: float | None = None, scorer: str | None = None
) -> Samples:
    """The samples of a run whose groups are all of one step, so of one policy, counted by prompt."""
    if len(run.steps) > 1:
        raise InputError(
            f"{run.source.path} logs {len(run.steps)} training steps, each from another policy: they have no "
            "common pass@k.",
            hint="Give a file with several samples a prompt from one policy. `gradscope degeneracy` reads such a log.",
        )
    table = reward_table(run.groups)
    rewards = table.reward if scorer is None else table.rewards[scorer]
    is_known = ~np.isnan(rewards)
    reward, prompt = rewards[is_known], np.repeat(table.prompt, table.size)[is_known]
    if not len(reward):
        raise InputError(
            f"{run.source.path} holds no sample with a reward.",
            hint="Name the column of verdicts with --reward-column.",
        )
    threshold = success_threshold
    if threshold is None:
        threshold = binary_threshold(reward)
    if threshold is None and _are_counts(reward, prompt):
        largest = reward.max()
        raise InputError(
            f"{run.source.path} has one row a prompt, with whole numbers up to {largest:g} as rewards: counts of "
            "correct samples are no verdicts.",
            hint="Name the columns of both counts: --n-column N --c-column C. If they are scores of one sample each, "
            "say which of them pass: --success-threshold 1",
        )
    if threshold is None:
        raise InputError(
            f"{run.source.path} has rewards that are neither 0/1 nor -1/1: which samples are correct is not known.",
            hint="Say from which reward on a sample counts as correct: --success-threshold 0.5",
        )
    passing = passes(reward, threshold).astype(np.float64)
    counts = cluster_sums(np.column_stack([passing, np.ones(len(reward))]), prompt).astype(np.int64)
    return Samples(
        name=name,
        source=run.source,
        prompts=tuple(table.prompts[at] for at in dict.fromkeys(prompt.tolist())),
        num_samples=counts[:, 1],
        num_correct=counts[:, 0],
        num_missing=int(np.sum(~is_known)),
    )


def _are_counts(reward: NDArray[np.float64], prompt: Counts) -> bool:
    """Whether each prompt has one reward, and all are whole numbers from 0 on: such a column counts something."""
    is_whole = np.all((reward >= 0) & (reward == np.floor(reward)))
    return bool(is_whole and len(np.unique(prompt)) == len(prompt))
