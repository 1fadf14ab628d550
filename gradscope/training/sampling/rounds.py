"""How a step's rollouts are sampled: in one round, or in several of which each depends on what the last one earned.

Each kind takes the step's rows as TRL's sampler has them, G in a row a prompt, and a function that samples and scores
rows, and gives back the batch to train on with what it cost.

Shapes: N groups of a step, G rollouts of a group, R rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradscope.training.sampling.allocation import live_groups, remaining_budget, replacements
from gradscope.training.sampling.sampled_batch import Scored, merge
from gradscope.training.setup.config import DEFAULT_MAX_RESAMPLING, TrainConfig

Row = Mapping[str, Any]
"""A row of TRL's dataset."""
Sample = Callable[[Sequence[Row]], Scored]
"""Samples and scores a completion of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What a step trains on."""

    scored: Scored
    """Its rollouts, group by group."""
    sizes: tuple[int, ...]
    """Rollouts of each group, [N]."""
    cost: Mapping[str, int] = field(default_factory=dict)
    """What was sampled for it, by the names of the run's metrics; empty where it is what was sampled."""


class FixedSampling:
    """G rollouts of each prompt.

    Args:
        group_size: G.
    """

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size

    def batch(self, rows: Sequence[Row], step: int, sample: Sample) -> StepBatch:
        """Sample a step, counted from 1, of rows, [R], by a function that samples and scores rows."""
        return StepBatch(scored=sample(rows), sizes=(self._group_size,) * (len(rows) // self._group_size))


class DynamicSampling(FixedSampling):
    """G rollouts of each prompt; dead groups make room for live ones of other prompts, a number of rounds at most.

    A round samples as many prompts as groups are missing, none twice in a step. A dead group stays where none was found
    to replace it.

    Args:
        group_size: G.
        pool: Rows of all prompts of the run.
        seed: The run's seed.
        max_rounds: Most rounds after the first.
        padding: The token that pads.
    """

    def __init__(self, group_size: int, *, pool: Sequence[Row], seed: int, max_rounds: int, padding: int) -> None:
        super().__init__(group_size)
        self._pool = {row["prompt_id"]: row for row in pool}
        self._seed = seed
        self._max_rounds = max_rounds
        self._padding = padding

    def batch(self, rows: Sequence[Row], step: int, sample: Sample) -> StepBatch:
        """Sample a step: a batch of as many groups as the rows have prompts."""
        size = self._group_size
        order = replacements(list(self._pool), {row["prompt_id"] for row in rows}, seed=self._seed, step=step)
        rounds = [sample(rows)]
        is_live = live_groups(rounds[0].totals.reshape(-1, size))
        taken = list(range(len(is_live)))
        missing = [slot for slot in taken if not is_live[slot]]
        while missing and order and len(rounds) <= self._max_rounds:
            chosen, order = order[: len(missing)], order[len(missing) :]
            rounds.append(sample([dict(self._pool[prompt_id]) for prompt_id in chosen for _ in range(size)]))
            lives = live_groups(rounds[-1].totals.reshape(-1, size))
            replacing = [len(is_live) + slot for slot, live in enumerate(lives) if live]
            is_live += lives
            for slot, group in zip(missing, replacing, strict=False):
                taken[slot] = group
            missing = missing[len(replacing) :]
        kept = [group * size + sample for group in taken for sample in range(size)]
        more = {
            "num_sampled_degenerate_groups": len(is_live) - sum(is_live),
            "num_resampled_groups": len(is_live) - len(taken),
        }
        return _batch(rounds, kept, [size] * len(taken), self._padding, {"num_sampled_groups": len(is_live)} | more)


class ReallocatedSampling(FixedSampling):
    """A probe of G/2 rollouts of each prompt; what solved prompts have left goes to unsolved ones.

    Args:
        group_size: G, even.
        padding: The token that pads.
    """

    def __init__(self, group_size: int, *, padding: int) -> None:
        super().__init__(group_size)
        self._padding = padding

    def batch(self, rows: Sequence[Row], step: int, sample: Sample) -> StepBatch:
        """Sample a step: a batch of as many rollouts as rows, in which a group's probe comes before the rest of it."""
        prompts, half = rows[:: self._group_size], self._group_size // 2
        probe = sample([dict(row) for row in prompts for _ in range(half)])
        rewards = probe.totals.reshape(-1, half)
        budget = remaining_budget(list(rewards), size=half, highest=float(len(probe.trained)))
        rest = sample([dict(row) for row, number in zip(prompts, budget, strict=True) for _ in range(number)])
        start, kept = len(probe.rows), []
        for slot, number in enumerate(budget):
            kept += [*range(slot * half, (slot + 1) * half), *range(start, start + number)]
            start += number
        cost = {
            "num_sampled_groups": len(prompts),
            "num_moved_rollouts": sum(max(number - half, 0) for number in budget),
        }
        return _batch([probe, rest], kept, [half + number for number in budget], self._padding, cost)


def make_sampling(config: TrainConfig, pool: Sequence[Row], *, padding: int) -> FixedSampling:
    """The sampling of a run.

    Args:
        config: Its configuration.
        pool: Rows of all its prompts.
        padding: The token that pads.

    Returns:
        The sampling.
    """
    if config.sampling == "dynamic":
        rounds = config.max_resampling or DEFAULT_MAX_RESAMPLING
        return DynamicSampling(config.group_size, pool=pool, seed=config.seed, max_rounds=rounds, padding=padding)
    if config.sampling == "reallocated":
        return ReallocatedSampling(config.group_size, padding=padding)
    return FixedSampling(config.group_size)


def _batch(
    rounds: Sequence[Scored], kept: Sequence[int], sizes: Sequence[int], padding: int, cost: Mapping[str, int]
) -> StepBatch:
    """The batch of some rows, with the tokens that were sampled for it and those that it leaves out."""
    merged = merge(rounds, kept, padding=padding)
    num_tokens = sum(int(scored.num_tokens.sum()) for scored in rounds)
    total = {
        "num_sampled_rollouts": sum(len(scored.rows) for scored in rounds),
        "num_sampled_tokens": num_tokens,
        "num_discarded_tokens": num_tokens - int(merged.num_tokens.sum()),
    }
    return StepBatch(scored=merged, sizes=tuple(sizes), cost={**cost, **total})
