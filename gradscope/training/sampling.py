"""How a step's rollouts are sampled: in one round, or in several of which each depends on the last one's rewards.

Each kind takes the step's rows as TRL's sampler has them, G in a row a prompt, and a function that samples and scores
rows, and returns the batch to train on with its cost.

Shapes: N groups of a step, G rollouts of a group, R rollouts of a step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.metrics.outcomes.groups import all_equal
from gradscope.training.config import DEFAULT_MAX_RESAMPLING, TrainConfig

# Which prompts a step samples, and how many rollouts of each, given the rewards of the first ones.
#
# ``dynamic`` replaces dead groups by groups of other prompts (Yu et al. 2025, DAPO, arXiv 2503.14476). ``reallocated``
# moves rollouts from prompts that a probe of half the budget solves to prompts that it does not.
Array = NDArray[np.float64]


def _live_groups(rewards: Iterable[Array]) -> list[bool]:
    """Which groups have rewards that differ."""
    return [not all_equal(group.tolist()) for group in rewards]


def _replacements(prompt_ids: Sequence[str], in_step: Collection[str], *, seed: int, step: int) -> list[str]:
    """The order in which other prompts replace dead ones; seed and step alone decide, so a resumed run has the same.

    >>> sorted(_replacements(["a", "b", "c", "d"], {"b"}, seed=0, step=1))
    ['a', 'c', 'd']
    """
    candidates = [prompt_id for prompt_id in prompt_ids if prompt_id not in in_step]
    return [candidates[index] for index in np.random.default_rng([seed, step]).permutation(len(candidates))]


def _remaining_budget(probe: Sequence[Array], *, size: int, highest: float) -> list[int]:
    """How many rollouts each prompt still gets after a probe, [N], of ``size`` that each has left."""
    # A prompt is solved where every rollout of its probe has the highest reward, and unsolved where none has any.
    # Solved prompts give their remaining rollouts to the unsolved ones, which share them evenly; the remainder goes,
    # one each, to the first of them. All others keep their own, as do all where there are no givers or no takers.
    solved = [index for index, rewards in enumerate(probe) if rewards.min() >= highest]
    unsolved = [index for index, rewards in enumerate(probe) if rewards.max() <= 0.0]
    budget = [size] * len(probe)
    if not unsolved:
        return budget
    share, remainder = divmod(size * len(solved), len(unsolved))
    for index in solved:
        budget[index] = 0
    for rank, index in enumerate(unsolved):
        budget[index] += share + (rank < remainder)
    return budget


# Rollouts as TRL returns them, sampled and scored, and several rounds of them as one batch.
#
# TRL pads prompts on the left and completions on the right, to the longest of a call. Rounds are padded to the longest
# of all, and columns that no selected row needs are cut off, so that a batch looks as if made by a single call.
_PROMPT = ("prompt_ids", "prompt_mask")
_TOTAL = "num_items_in_batch"  # TRL's number of tokens that are in the loss


class Scored(Struct, frozen=True, kw_only=True):
    """Rollouts that were generated and scored."""

    rows: Sequence[Mapping[str, Any]]  # the rows of TRL's dataset that they answer, [R]
    output: dict[str, Any]  # TRL's output for them
    rewards: Mapping[str, Sequence[float]]  # reward function -> rewards, [R]
    trained: tuple[str, ...]  # the reward functions that are trained on; the others are only recorded

    @property
    def totals(self) -> NDArray[np.float64]:
        """Scalar rewards, the sum over the reward functions that are trained on, [R]."""
        return np.asarray(np.sum([self.rewards[name] for name in self.trained], axis=0), dtype=np.float64)

    @property
    def num_tokens(self) -> NDArray[np.int64]:
        """Tokens of each completion, [R]."""
        return np.asarray(self.output["completion_mask"].sum(dim=1).cpu(), dtype=np.int64)


def merge(rounds: Sequence[Scored], selected: Sequence[int], *, padding: int) -> Scored:
    """Rows of several rounds, counted through, as one batch.

    Raises:
        ValueError: TRL returned something that is not one row a rollout.
    """
    merged = {}
    for name, first in rounds[0].output.items():
        if name == _TOTAL:
            continue
        if not (isinstance(first, torch.Tensor) and first.ndim in (1, 2)):
            raise ValueError(f"{name} of TRL's batch is not one row a rollout, so rounds of it cannot be merged")
        parts = [scored.output[name] for scored in rounds]
        filler = padding if name.endswith("_ids") else 0
        merged[name] = torch.cat(_same_width(parts, filler, left=name in _PROMPT))[list(selected)]
    # columns that no row needs are cut; numbers of tokens are as wide as the completions
    prompt, completion = (int(merged[name].sum(dim=1).max()) for name in ("prompt_mask", "completion_mask"))
    merged = {
        name: part if part.ndim == 1 else part[:, part.shape[1] - prompt :] if name in _PROMPT else part[:, :completion]
        for name, part in merged.items()
    }
    if _TOTAL in rounds[0].output:
        merged[_TOTAL] = merged["completion_mask"].sum().to(rounds[0].output[_TOTAL])
    rows = [row for scored in rounds for row in scored.rows]
    rewards = {name: [value for scored in rounds for value in scored.rewards[name]] for name in rounds[0].rewards}
    return Scored(
        rows=[rows[index] for index in selected],
        output=merged,
        rewards={name: [values[index] for index in selected] for name, values in rewards.items()},
        trained=rounds[0].trained,
    )


def _same_width(parts: Sequence[torch.Tensor], filler: int, *, left: bool) -> list[torch.Tensor]:
    """Tables padded to the width of the widest; lists of one number a rollout as they are."""
    if parts[0].ndim == 1:
        return list(parts)
    width = max(part.shape[1] for part in parts)
    missing = [width - part.shape[1] for part in parts]
    return [
        torch.nn.functional.pad(part, (number, 0) if left else (0, number), value=filler)
        for part, number in zip(parts, missing, strict=True)
    ]


Row = Mapping[str, Any]  # a row of TRL's dataset
Sample = Callable[[Sequence[Row]], Scored]  # samples and scores a completion of each row


class _StepBatch(Struct, frozen=True, kw_only=True):
    """The batch that a step trains on."""

    scored: Scored  # its rollouts, group by group
    sizes: tuple[int, ...]  # rollouts of each group, [N]
    cost: Mapping[str, int] = {}
    """The sampled rollouts and groups, by the names of the run's metrics; empty where the batch has all of them."""


Sampling = Callable[[Sequence[Row], int, Sample], _StepBatch]
"""Samples a step, counted from 1, of rows, [R], by a function that samples and scores rows."""


def _sample_once(rows: Sequence[Row], _: int, sample: Sample, *, size: int) -> _StepBatch:
    """G rollouts of each prompt."""
    return _StepBatch(scored=sample(rows), sizes=(size,) * (len(rows) // size))


def _replace_dead(
    rows: Sequence[Row],
    step: int,
    sample: Sample,
    *,
    size: int,
    pool: Mapping[str, Row],
    seed: int,
    max_rounds: int,
    padding: int,
) -> _StepBatch:
    """G rollouts of each prompt; dead groups make room for live ones of other prompts of the run, the ``pool``."""
    # A round samples as many prompts as groups are missing, none twice in a step; ``max_rounds`` does not count the
    # first. A dead group stays where none was found to replace it.
    order = _replacements(list(pool), {row["prompt_id"] for row in rows}, seed=seed, step=step)
    rounds = [sample(rows)]
    is_live = _live_groups(rounds[0].totals.reshape(-1, size))
    groups = list(range(len(is_live)))
    missing = [index for index in groups if not is_live[index]]
    while missing and order and len(rounds) <= max_rounds:
        chosen, order = order[: len(missing)], order[len(missing) :]
        rounds.append(sample([dict(pool[prompt_id]) for prompt_id in chosen for _ in range(size)]))
        lives = _live_groups(rounds[-1].totals.reshape(-1, size))
        replacing = [len(is_live) + index for index, live in enumerate(lives) if live]
        is_live += lives
        for index, group in zip(missing, replacing, strict=False):
            groups[index] = group
        missing = missing[len(replacing) :]
    selected = [group * size + sample for group in groups for sample in range(size)]
    cost = {
        "num_sampled_groups": len(is_live),
        "num_sampled_degenerate_groups": len(is_live) - sum(is_live),
        "num_resampled_groups": len(is_live) - len(groups),
    }
    return _batch(rounds, selected, [size] * len(groups), padding, cost)


def _reallocate(rows: Sequence[Row], _: int, sample: Sample, *, size: int, padding: int) -> _StepBatch:
    """A probe of G/2 rollouts of each prompt, which come first in its group; the rest of solved go to unsolved ones."""
    prompts, half = rows[::size], size // 2
    probe = sample([dict(row) for row in prompts for _ in range(half)])
    rewards = probe.totals.reshape(-1, half)
    budget = _remaining_budget(list(rewards), size=half, highest=float(len(probe.trained)))
    rest = sample([dict(row) for row, number in zip(prompts, budget, strict=True) for _ in range(number)])
    start, selected = len(probe.rows), []
    for slot, number in enumerate(budget):
        selected += [*range(slot * half, (slot + 1) * half), *range(start, start + number)]
        start += number
    cost = {"num_sampled_groups": len(prompts), "num_moved_rollouts": sum(max(number - half, 0) for number in budget)}
    return _batch([probe, rest], selected, [half + number for number in budget], padding, cost)


def make_sampling(config: TrainConfig, pool: Sequence[Row], *, padding: int) -> Sampling:
    """The sampling of a run, ``pool`` the rows of all its prompts."""
    size = config.group_size
    if config.sampling == "dynamic":
        rounds, prompts = config.max_resampling or DEFAULT_MAX_RESAMPLING, {row["prompt_id"]: row for row in pool}
        return partial(_replace_dead, size=size, pool=prompts, seed=config.seed, max_rounds=rounds, padding=padding)
    if config.sampling == "reallocated":
        return partial(_reallocate, size=size, padding=padding)
    return partial(_sample_once, size=size)


def _batch(
    rounds: Sequence[Scored], selected: Sequence[int], sizes: Sequence[int], padding: int, cost: Mapping[str, int]
) -> _StepBatch:
    """The batch of some rows, with the tokens that were sampled for it and those that it leaves out."""
    merged = merge(rounds, selected, padding=padding)
    num_tokens = sum(int(scored.num_tokens.sum()) for scored in rounds)
    total = {
        "num_sampled_rollouts": sum(len(scored.rows) for scored in rounds),
        "num_sampled_tokens": num_tokens,
        "num_discarded_tokens": num_tokens - int(merged.num_tokens.sum()),
    }
    return _StepBatch(scored=merged, sizes=tuple(sizes), cost={**cost, **total})
