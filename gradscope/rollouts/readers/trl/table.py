"""The rewards of TRL's files without an object a rollout.

Legend: N rows of a file, G group size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE, QuarantineLog
from gradscope.rollouts.readers.trl.blocks import prompts_of_groups
from gradscope.rollouts.readers.trl.files import StepFile
from gradscope.rollouts.readers.trl.rewards import scalar_rewards
from gradscope.rollouts.reward_table import UNKNOWN, RewardTable

NO_REWARD = "no reward function gave a finite number"
SHARED_NAME = "reward functions share a name, so that their sum is not known"


def without_reward(weights: Mapping[str, float]) -> str:
    """Why a row has no reward, by the weights of the functions, which are NaN where several share a name."""
    return SHARED_NAME if any(map(math.isnan, weights.values())) else NO_REWARD


def table_of_files(
    files: Sequence[StepFile], size: int, weights: Mapping[str, float], quarantine: QuarantineLog
) -> RewardTable:
    """The table of some files, whose rows are cut into groups.

    Args:
        files: At least one.
        size: G.
        weights: Reward function -> weight.
        quarantine: Takes the rows without a reward, which stay in their groups, and broken advantages.

    Returns:
        The table.
    """
    rewards = [{name: file.numbers(name) for name in weights} for file in files]
    totals = [scalar_rewards(numbers, weights) for numbers in rewards]
    for file, total in zip(files, totals, strict=True):
        _set_aside(file, np.isnan(total), without_reward(weights), quarantine)
    starts = [np.arange(0, file.size, size) for file in files]
    prompts, of_group = prompts_of_groups([file.prompts for file in files], size)
    lengths = np.concatenate([file.num_tokens() for file in files])
    advantage = np.concatenate([file.numbers("advantage") for file in files])
    first = [pair for file in reversed(files) for pair in zip(file.prompts.ids, file.prompts.texts, strict=True)]
    texts = dict(first)
    return RewardTable(
        step=np.concatenate([np.full(len(at), file.step) for file, at in zip(files, starts, strict=True)]),
        names=tuple(f"{file.step}:{at}" for file in files for at in range(-(-file.size // size))),
        prompt=of_group,
        prompts=prompts,
        size=np.concatenate([np.diff(at, append=file.size) for file, at in zip(files, starts, strict=True)]),
        reward=np.concatenate(totals),
        rewards={name: np.concatenate([numbers[name] for numbers in rewards]) for name in weights},
        advantage=None if np.isnan(advantage).all() else advantage,
        prompt_texts=tuple(texts[name] for name in prompts),
        num_tokens=lengths if np.any(lengths != UNKNOWN) else None,
    )


def _set_aside(file: StepFile, lacks: np.ndarray, why: str, quarantine: QuarantineLog) -> None:
    """As the row reader does, row by row: a row without a reward, else one whose advantage is no finite number."""
    broken = np.zeros(file.size, dtype=np.bool_)
    if "advantage" in file.doubles:
        numbers = file.cells["advantage"].to_pylist() if np.isnan(file.numbers("advantage")).any() else []
        broken[: len(numbers)] = [number is not None and not np.isfinite(number) for number in numbers]
    for at in np.flatnonzero(lacks | broken).tolist():
        quarantine.add(why if lacks[at] else BROKEN_ADVANTAGE, f"{file.path}:{at + 1}")
