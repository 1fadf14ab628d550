"""The rollouts of a step as rows: their Gram matrices, the groups they fall into, and the advantages of each.

Shapes: R rollouts of a step, G rollouts of a part, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors.numpy import save

from gradscope.advantages import registry
from gradscope.advantages.group import gdpo, optimal_advantages
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.errors import InputError, UsageError
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.source import RowKind
from gradscope.rollouts.function_rewards import FunctionRewards
from gradscope.rollouts.groups import Rollout, RolloutGroup, sizes_of
from gradscope.rollouts.run import Run
from gradscope.writing import atomic_write

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram


class StepRows(Struct, frozen=True, kw_only=True):
    """The Gram matrices of one step and what belongs to each rollout."""

    step: int
    gram: Array  # Gram matrix K of score vectors, [R, R]
    policy_gram: Array | None
    """Gram matrix of the reward part of each rollout's gradient under the logged advantages, [R, R]; None where none
    were logged."""
    full_gram: Array | None  # the same with the KL part added; equal to ``policy_gram`` without a KL term
    rewards: Array  # scalar rewards, NaN where missing, [R]
    advantages: Array | None  # logged advantages, [R]; None where none were logged or each token has its own
    group_ids: tuple[str, ...]  # the group of each rollout, [R]
    samples: tuple[int, ...]  # the index of each rollout within its group, [R]
    num_parameters: int  # P
    relative_row_error: float  # relative error of a row, which sets the noise floor
    own_squared_norms: Array | None = None
    """|s|^2 of the score vectors by all parameters, [R], where ``gram`` is of something else: a formulation that needs
    them stays the same whatever the rows are. NaN where there is no gradient; None: the diagonal of ``gram``."""

    score_rows: Array | None = None
    """The score vectors themselves, [R, C], where they have far fewer columns than a step has rollouts."""
    lengths: Array | None = None  # tokens of each completion, [R]; None where they are unknown
    functions: FunctionRewards | None = None  # the rewards of each function; None where they are not known

    @property
    def squared_norms(self) -> Array:
        """|s|^2 of each rollout's score vector by all parameters, [R]."""
        if self.own_squared_norms is not None:
            return self.own_squared_norms
        return np.asarray(np.clip(np.diag(self.gram), 0.0, None), dtype=np.float64)

    @property
    def is_live(self) -> NDArray[np.bool_] | None:
        """Which rollouts have a reward gradient that is not zero, [R]; None where no advantage was logged."""
        if self.policy_gram is None:
            return None
        return np.asarray(np.diag(self.policy_gram) > 0)


def step_rows(gram: StepGram, functions: FunctionRewards | None = None) -> StepRows:
    """The blocks of a step's Gram matrix in plain arrays, with the rewards of each function where they are known."""
    return StepRows(
        step=gram.step,
        gram=gram.score_gram,
        policy_gram=gram.policy_gram,
        full_gram=gram.logged_gram,
        rewards=gram.rewards,
        advantages=gram.advantages,
        group_ids=gram.group_ids,
        samples=gram.samples,
        num_parameters=gram.num_parameters,
        relative_row_error=gram.relative_row_error,
        lengths=np.array([len(logprobs) for logprobs in gram.logprobs], dtype=np.float64),
        functions=functions,
    )


WEIGHED = ("gram", "length")  # scopes of formulations whose baseline is a weighted mean of the group's rewards


class SubGroup(Struct, frozen=True, kw_only=True):
    """Rollouts that share a baseline: a group, or a part of one."""

    group_id: str  # the group that they belong to
    index: NDArray[np.intp]  # their rows in the step, [G]
    samples: tuple[int, ...]  # which samples of the group they are


def sub_groups(rows: StepRows, group_size: int | None) -> list[SubGroup]:
    """Disjoint parts of every group of a step, by group; a remainder is left out. None: the groups as they are."""
    # The rollouts of a group are exchangeable, so consecutive parts are as good as random ones, and disjoint parts
    # are independent given the prompt.
    members: dict[str, list[int]] = {}
    for row, group_id in enumerate(rows.group_ids):
        members.setdefault(group_id, []).append(row)
    parts = []
    for group_id, index in members.items():
        size = len(index) if group_size is None else group_size
        cut = (index[start : start + size] for start in range(0, len(index) - size + 1, size))
        parts += [
            SubGroup(group_id=group_id, index=np.array(part), samples=tuple(rows.samples[row] for row in part))
            for part in cut
        ]
    return parts


def advantages_of(rows: StepRows, parts: Sequence[SubGroup], advantage: str) -> list[Array]:
    """The advantages of each part, [n][G]; where each token has its own, 1 for a rollout with a gradient, else 0."""
    # They are computed together: a formulation may look at all groups of the step.
    if advantage == registry.LOGGED:
        return [_logged(rows)[part.index] for part in parts]
    for part in parts:
        if np.isnan(rows.rewards[part.index]).any():
            raise InputError(f"A rollout of group {part.group_id} at step {rows.step} has no reward.")
    scope = registry.formulation(advantage).scope
    if scope == "functions":
        if rows.functions is None or np.isnan(rows.functions.table).any():
            raise InputError(
                f"{advantage} needs the rewards of each function at step {rows.step}, and not all were logged.",
                hint="Name another --advantage.",
            )
        return list(gdpo([rows.functions.table[part.index] for part in parts], rows.functions.weights))
    if scope not in WEIGHED:
        return list(registry.compute_step_advantages(advantage, [rows.rewards[part.index] for part in parts]))
    by_position: dict[int, Array] = {}
    weights = baseline_weights_of(rows, advantage)
    for positions in by_size(parts):
        index = np.stack([parts[position].index for position in positions])
        by_position |= dict(zip(positions, formulated(advantage, rows.rewards[index], weights[index]), strict=True))
    return [by_position[position] for position in range(len(parts))]


def baseline_weights_of(rows: StepRows, advantage: str) -> Array:
    """What each rollout weighs in the baseline of a formulation, [R]: its squared norm, its length, or 1."""
    scope = None if advantage == registry.LOGGED else registry.formulation(advantage).scope
    if scope == "gram" and np.isnan(rows.squared_norms).any():
        raise InputError(f"{advantage} depends on the norms of gradients, and advantages alone have none.")
    if scope == "length" and rows.lengths is None:
        raise InputError(f"{advantage} depends on the lengths of completions, which are not known here.")
    if scope == "gram":
        return rows.squared_norms
    return np.ones(len(rows.rewards)) if scope != "length" or rows.lengths is None else rows.lengths


def formulated(advantage: str, rewards: Array, weights: Array) -> Array:
    """The advantages of groups of one size, [n, G], from their rewards and the weights of rollouts, [n, G] each."""
    if registry.formulation(advantage).scope in WEIGHED:
        return optimal_advantages(rewards, weights)
    return registry.compute_advantages(advantage, rewards)


def by_size(parts: Sequence[SubGroup]) -> list[list[int]]:
    """Places of the parts that have the same number of rollouts, smallest size first."""
    sizes = sorted({len(part.index) for part in parts})
    return [[position for position, part in enumerate(parts) if len(part.index) == size] for size in sizes]


def _logged(rows: StepRows) -> Array:
    if rows.advantages is not None:
        return rows.advantages
    if rows.is_live is None:
        raise InputError(f"No advantages were logged at step {rows.step}.", hint="Name one: --advantage dr_grpo")
    return rows.is_live.astype(np.float64)


_MAX_ROWS = 1 << 14


def advantage_rows(step: int, groups: Sequence[RolloutGroup]) -> StepRows:
    """The inner products of the advantages of a step's rollouts as rows whose columns are token positions."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    divided = next((rollout for rollout in rollouts if rollout.earlier), None)
    if divided is not None:
        raise InputError(
            f"Rollout {divided.sample} of group {divided.group_id} is several sequences, and a row holds the tokens of "
            "one.",
            hint="Ask for a step whose rollouts are one sequence each.",
            cause="several_sequences",
        )
    if len(rollouts) > _MAX_ROWS:
        raise InputError(
            f"It has {len(rollouts):,} rollouts, and the inner products of more than {_MAX_ROWS:,} take gigabytes.",
            hint="Ask for a smaller step.",
        )
    counted = [_counted(rollout) for rollout in rollouts]
    width = max(len(row) for row in counted)
    scores = np.stack([np.pad(row, (0, width - len(row))) for row in counted])
    pairs = (
        (rollout.advantage if rollout.token_advantages is None else rollout.token_advantages, row)
        for rollout, row in zip(rollouts, counted, strict=True)
    )
    logged_rows = [np.asarray(advantage) * row for advantage, row in pairs if advantage is not None]
    gram = scores @ scores.T
    # of positions that the same rollouts reach one is enough, as long as all of them
    columns, counts = np.unique(scores, axis=1, return_counts=True)
    policy = None
    if len(logged_rows) == len(rollouts):
        rows = np.stack([np.pad(row, (0, width - len(row))) for row in logged_rows])
        policy = np.asarray(rows @ rows.T, dtype=np.float64)
    scalars = [rollout.advantage for rollout in rollouts if rollout.token_advantages is None]
    logged_scalars = [row for row in scalars if row is not None]
    return StepRows(
        step=step,
        gram=np.asarray(gram, dtype=np.float64),
        policy_gram=policy,
        full_gram=policy,
        rewards=np.array([math.nan if rollout.reward is None else rollout.reward for rollout in rollouts]),
        advantages=np.array(logged_scalars) if len(logged_scalars) == len(rollouts) else None,
        group_ids=tuple(rollout.group_id for rollout in rollouts),
        samples=tuple(rollout.sample for rollout in rollouts),
        num_parameters=width,
        relative_row_error=float(np.finfo(np.float64).eps),
        own_squared_norms=np.full(len(rollouts), np.nan),
        score_rows=columns * np.sqrt(counts) if 2 * len(counts) <= len(rollouts) else None,
    )


def _counted(rollout: Rollout) -> Array:
    """1 where a token counts in the loss, [T]."""
    values = (rollout.mask, rollout.token_advantages, rollout.completion_ids, rollout.logprobs)
    length = next((len(column) for column in values if column is not None), None)
    if not length:
        named = f" of group {rollout.group_id}" if rollout.group_id else ""
        raise InputError(
            f"Rollout {rollout.sample}{named} has no token ids, log-probabilities or advantages "
            "of tokens, so its number of tokens is not known.",
            hint="Look at a matrix that a tokenizer can make: --rows rollout.",
        )
    return rollout.counted(length).astype(np.float64)


def write_gram(folder: Path, rows: StepRows) -> str:
    """Write K, rewards and advantages of one step into a folder, made where it is absent; the file's name."""
    name = f"gram_step_{rows.step:05d}.safetensors"
    group_index = np.unique(rows.group_ids, return_inverse=True)[1]
    arrays = {"score_gram": rows.gram, "rewards": rows.rewards, "group_index": group_index.astype(np.int64)}
    if rows.full_gram is not None:
        arrays["gradient_gram"] = rows.full_gram
    if rows.advantages is not None:
        arrays["advantages"] = rows.advantages
    atomic_write(folder / name, save({key: np.ascontiguousarray(value) for key, value in arrays.items()}))
    return name


_GROUP_SIZES = (2, 4, 8)  # group sizes looked at where none is asked for, as far as the logged groups are large enough


class RankRequest(Struct, frozen=True, kw_only=True):
    """The matrices, the advantages and the group sizes."""

    rows: RowKind  # which matrix
    advantages: tuple[str, ...]  # ``logged`` and formulations that exist
    group_sizes: tuple[int, ...]  # sizes to regroup into, in addition to the logged one
    options: RankOptions = RankOptions()  # how rows are grouped, centered and drawn, and where matrices go

    def sizes(self, rows: StepRows, advantage: str) -> tuple[int | None, ...]:
        """The group sizes of one advantage, first None: the groups as they are, the only ones that logged ones have."""
        if advantage == registry.LOGGED:
            return (None,)
        logged_sizes = set(np.unique(rows.group_ids, return_counts=True)[1].tolist())
        fewest = registry.formulation(advantage).min_group_size
        return (None, *(size for size in self.group_sizes if size >= fewest and logged_sizes != {size}))

    def groups(self, rows: StepRows, advantage: str) -> frozenset[str] | None:
        """The groups that count under one advantage; None: all of them."""
        if not self.options.pair_groups:
            return None
        live = []  # at each size the groups with a part that lives: the same prompts whatever the size
        for size in self.sizes(rows, advantage):
            parts = sub_groups(rows, size)
            pairs = zip(parts, advantages_of(rows, parts, advantage), strict=True)
            live.append(frozenset(part.group_id for part, weights in pairs if np.any(weights != 0)))
        return frozenset.intersection(*live)


def checked_advantages(names: Sequence[str] | None) -> tuple[str, ...]:
    """Names checked against the registry, each once; ``all`` and None: the logged one and every formulation."""
    # A name of a function in a file runs the file.
    everything = (registry.LOGGED, *registry.FORMULATIONS, *registry.GRAM_FORMULATIONS)
    for name in names or ():
        if name not in (registry.LOGGED, "all"):
            registry.named_formulation(name)
    if names is None:
        return everything
    return tuple(dict.fromkeys(advantage for name in names for advantage in (everything if name == "all" else (name,))))


def possible_sizes(run: Run, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes that some group of the log can give; 2, 4 and 8 as far as it can where none is asked for."""
    largest = max(sizes_of(run.groups), default=0)
    for size in sizes:
        if not 2 <= size <= largest:
            raise UsageError(
                f"Groups of {size} cannot be taken from this log: its largest group has {largest} rollouts.",
                hint=f"Choose a --group-size from 2 to {largest}.",
            )
    return tuple(dict.fromkeys(sizes)) if sizes else tuple(size for size in _GROUP_SIZES if size < largest)
