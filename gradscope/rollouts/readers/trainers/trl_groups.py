"""Infers what TRL's and ms-swift's logs leave out: how many rows make a group, and how their rewards add up.

Rows come in blocks of G. Grouping by the prompt's text would merge two groups of one prompt, so blocks are cut by
position. The scalar reward is the weighted sum of those of the functions. Shapes: N rows of a step, G rollouts of a
group, L logged steps, K reward functions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress, count, takewhile
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.rollouts.arrays import Counts, Floats, to_indices
from gradscope.rollouts.groups import REWARD, UNKNOWN, RewardTable, Rollout, RolloutGroup
from gradscope.rollouts.readers.parsing.cells import finite_or_none, logged_number, parse_messages, text_of, token_ids
from gradscope.rollouts.readers.trainers.trl_files import RowPrompts, StepFile, TrlState
from gradscope.rollouts.run import TrainerSettings

_TOLERANCE = 1e-3
"""Largest deviation from the group's line, relative to the largest advantage: far above the rounding of float32, far
below the deviation in a wrong block."""
_SHARE_TOLERANCE = 1e-6  # the log is float32
_RUNS = "greatest common divisor of the runs of equal prompts"
_FIT_TOLERANCE = 1e-5  # largest residual of fitted weights, relative to the largest logged reward: the log is float32
MASKS = ("completion_mask", "env_mask", "tool_mask")
_MAX_CONDITION = 1e4  # of the logged means; beyond it they do not determine the weights


class Block(Struct, frozen=True, kw_only=True):
    """The rows of a step without their texts, as columns of numbers, [N] each."""

    location: str  # their file, or ``file:line``
    step: int
    prompts: RowPrompts  # the prompts of its rows
    rewards: Floats  # scalar rewards; not finite where there is none
    functions: Mapping[str, Floats]  # reward function -> its rewards, NaN where it gave none
    advantages: Floats  # logged advantages; likewise
    logged_share: float | None = None  # the trainer's ``frac_reward_zero_std``, where it was logged for this step alone
    num_tokens: Counts | None = None
    """Tokens of completions, -1 where they were not logged; None where the log has none."""
    completions: Mapping[str, Counts] = {}  # what was measured of their texts


def group_sizes(blocks: Sequence[Block], settings: TrainerSettings) -> tuple[list[int], tuple[str, ...]]:
    """Rollouts per group, G, of each block, and sentences on how they were inferred.

    Raises:
        InputError: ``num_generations`` was given and the rows are not blocks of that size.
    """
    num_generations = settings.get("num_generations")
    if num_generations is not None:
        misfit = next((block for block in blocks if not _has_groups_of(block, num_generations)), None)
        if misfit is not None:
            raise InputError(
                f"{settings.origin} gives num_generations {num_generations!r}, but the rows of {misfit.location} are "
                "not blocks of that many rollouts of one prompt.",
                hint="Check that the arguments belong to this run.",
            )
        return [int(num_generations)] * len(blocks), ()
    longest = math.gcd(*(length for block in blocks for length in _runs(block.prompts.index)))
    sizes = [size for size in range(longest, 1, -1) if longest % size == 0]
    for evidence, fits in (("advantages", _explains), ("frac_reward_zero_std", _has_logged_share)):
        size = next((size for size in sizes if all(fits(block, size) for block in blocks)), None)
        if size is not None:
            method = f"{_RUNS}, confirmed by" if size == longest else f"runs of {longest} equal prompts, cut by"
            return [size] * len(blocks), (f"Groups are blocks of {size} rows ({method} the logged {evidence}).",)
    if changing := _changing_sizes(blocks):
        different = " and ".join(map(str, dict.fromkeys(changing)))
        return changing, (f"The group size changes: groups are blocks of {different} rows, by the logged advantages.",)
    return [longest] * len(blocks), (f"Groups are blocks of {longest} rows ({_RUNS}; nothing in the log confirms it).",)


def _changing_sizes(blocks: Sequence[Block]) -> list[int]:
    """The size in each block that explains its advantages; of several the one before. Empty where a block has none."""
    longest = ((block, math.gcd(*_runs(block.prompts.index))) for block in blocks)
    fitting = [[n for n in range(run, 1, -1) if run % n == 0 and _explains(block, n)] for block, run in longest]
    size, chosen = next((sizes[0] for sizes in fitting if len(sizes) == 1), 0), list[int]()
    for sizes in fitting if all(fitting) else ():
        size = size if size in sizes else sizes[0]
        chosen.append(size)
    return chosen


def uncut(blocks: Sequence[Block], settings: TrainerSettings) -> tuple[int, ...]:
    """Indices of blocks whose rows do not come in groups of the usual size: rows were lost or exchanged."""
    common_sizes = [math.gcd(*_runs(block.prompts.index)) for block in blocks]
    usual, count = Counter(common_sizes).most_common(1)[0]
    decides = math.gcd(*common_sizes) == 1 and 2 * count > len(common_sizes)
    size = settings.get("num_generations", usual if decides else math.gcd(*common_sizes))
    wrong = tuple(index for index, block in enumerate(blocks) if not _has_groups_of(block, size))
    return wrong if len(wrong) < len(blocks) else ()


def table_of_blocks(blocks: Sequence[Block], sizes: Sequence[int]) -> RewardTable:
    """The table of at least one block, in the order of steps, each with complete groups of one size."""
    sized = list(zip(blocks, sizes, strict=True))
    num_groups = [len(block.prompts) // size for block, size in sized]
    step = np.repeat([block.step for block in blocks], num_groups)
    index_in_step = np.arange(len(step)) - np.searchsorted(step, step)
    codes: dict[str, int] = defaultdict(count().__next__)  # ids of prompts
    texts, prompts = list[str](), list[Counts]()
    for block, size in sized:
        prompt_codes = np.fromiter(map(codes.__getitem__, block.prompts.ids), np.int64, len(block.prompts.ids))
        texts += compress(block.prompts.texts, prompt_codes >= len(texts))
        prompts.append(prompt_codes[block.prompts.index[::size]])
    block_columns: list[dict[str, NDArray[Any]]] = [
        {
            "reward": np.where(np.isfinite(block.rewards), block.rewards, math.nan),
            "advantage": block.advantages,
            **{REWARD + name: values for name, values in block.functions.items()},
            "num_tokens": np.full(len(block.prompts), UNKNOWN) if block.num_tokens is None else block.num_tokens,
            **block.completions,
        }
        for block in blocks
    ]
    names = [name for name in block_columns[0] if all(name in prompt_codes for prompt_codes in block_columns)]
    columns = {name: np.concatenate([prompt_codes[name] for prompt_codes in block_columns]) for name in names}
    return RewardTable.from_columns(
        columns,
        step=step.astype(np.int64),
        names=to_indices(index_in_step).cast(pa.string()),
        prompt=np.concatenate(prompts),
        prompts=tuple(codes),
        size=np.repeat(np.array(sizes, dtype=np.int64), num_groups),
        prompt_texts=tuple(texts) if any(texts) else None,
    )


def groups_with_rows(
    table: RewardTable, step: int, rows: Sequence[Mapping[str, Any]], ids: Mapping[int, tuple[int, ...]]
) -> list[RolloutGroup]:
    """The groups of a step with all that its rows hold; ``ids`` of completions, by row, are from a side file."""
    groups, table = [], table.select(table.step == step)
    missing = np.full(len(table.reward), math.nan)
    numbers = {"": table.reward, "advantage": missing if table.advantage is None else table.advantage}
    numbers |= {REWARD + name: values for name, values in table.rewards.items()}
    logged = {name: [None if math.isnan(x) else x for x in values.tolist()] for name, values in numbers.items()}
    masks = [name for name in MASKS if any(name in row for row in rows)]
    for index, (group_id, prompt) in enumerate(zip(table.ids(), table.prompts_of_groups(), strict=True)):
        start = int(table.starts[index])
        rollouts = tuple(
            Rollout(
                group_id=group_id,
                sample=number - start,
                row=number,
                prompt=text_of(row["prompt"]),
                completion=text_of(row["completion"]),
                messages=parse_messages(row["prompt"]),
                prompt_ids=token_ids(row.get("prompt_ids")),
                completion_ids=ids.get(number) or token_ids(row.get("completion_ids")),
                mask=_logged_mask(row, masks),
                logprobs=_logged_logprobs(row, "sampling_logprobs"),
                trainer_logprobs=_logged_logprobs(row, "old_per_token_logps"),
                reward=logged[""][number],
                rewards={name: logged[REWARD + name][number] for name in table.rewards},
                advantage=logged["advantage"][number],
            )
            for number, row in enumerate(rows[start : start + int(table.size[index])], start=start)
        )
        groups += [RolloutGroup(step=step, group_id=group_id, prompt_id=prompt, rollouts=rollouts)] if rollouts else []
    return groups


def _logged_mask(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[bool, ...] | None:
    lists = (cell for cell in map(row.get, columns) if isinstance(cell, list))
    fitting = (cell for cell in lists if all(type(part) in (int, bool) and part in (0, 1) for part in cell))
    return next((tuple(map(bool, cell)) for cell in fitting), None)


def _logged_logprobs(row: Mapping[str, Any], column: str) -> tuple[float, ...] | None:
    """Log-probabilities of the sampler or the trainer that a reward function logged; NaN where it logged none."""
    values = row.get(column)
    if not isinstance(values, list):
        return None
    numbers = [math.nan if value is None else logged_number(value) for value in values]
    logged = tuple(number for number in numbers if number is not None)
    return logged if len(logged) == len(numbers) else None


def _has_groups_of(block: Block, size: Any) -> bool:
    if not isinstance(size, int) or size < 1 or len(block.prompts) % size:
        return False
    return bool(np.all(np.ptp(block.prompts.index.reshape(-1, size), axis=1) == 0))


def _runs(indices: Counts) -> list[int]:
    """The lengths of runs of equal indices, each length once."""
    ends = np.flatnonzero(np.diff(indices, append=-1))
    return list(np.unique(np.diff(ends, prepend=-1)).tolist())


@np.errstate(over="ignore", invalid="ignore")  # rewards near the largest float
def _explains(block: Block, size: int) -> bool:
    """Whether advantages are a positive multiple of reward minus mean within every block of this size."""
    # Holds for every group-centered formulation, whatever it divides by. A block too large mixes two means; one too
    # small is not centered. A block with a missing reward is no evidence.
    if not (np.isfinite(block.rewards).all() and np.isfinite(block.advantages).all()):
        return True
    advantages, rewards = block.advantages.reshape(-1, size), block.rewards.reshape(-1, size)  # [groups, G]
    varies = np.ptp(rewards, axis=1, keepdims=True) > EQUAL_REWARDS
    centered = np.where(varies, rewards - rewards.mean(axis=1, keepdims=True), 0.0)
    energy = (centered**2).sum(axis=1, keepdims=True)
    slope = (advantages * centered).sum(axis=1, keepdims=True) / np.where(varies, energy, 1.0)
    deviation = np.abs(advantages - slope * centered).max()
    return bool(np.all((slope > 0) | ~varies) and deviation <= _TOLERANCE * np.abs(advantages).max())


@np.errstate(over="ignore")
def _has_logged_share(block: Block, size: int) -> bool:
    """Whether blocks of this size have the logged share of dead groups; False where none was logged."""
    if block.logged_share is None or np.isnan(block.rewards).any():
        return False
    rewards = block.rewards.reshape(-1, size)
    return bool(abs(np.mean(np.ptp(rewards, axis=1) <= EQUAL_REWARDS) - block.logged_share) <= _SHARE_TOLERANCE)


class RewardWeights(Struct, frozen=True, kw_only=True):
    """The reward functions and their weights."""

    weights: Mapping[str, float]  # reward function -> weight, in the order of the columns
    inferred: tuple[str, ...] = ()  # sentences for ``Source.inferred``
    missing: tuple[str, ...] = ()  # sentences for ``Source.missing``


def reward_weights(files: Sequence[StepFile], state: TrlState, settings: TrainerSettings) -> RewardWeights:
    """The reward functions of a run and their weights, with notes on how they were inferred.

    Raises:
        InputError: No column can be a reward function, or the given weights do not fit their number.
    """
    file = files[0]
    names = tuple(name for name in file.columns if name in state.reward_names)
    inferred: tuple[str, ...] = ()
    if not names:
        # TRL writes the columns of ``log_extra`` later.
        candidates = file.columns[file.columns.index("completion") + 1 :]
        names = tuple(takewhile(lambda name: name != "advantage" and name in file.doubles, candidates))
        inferred = (
            f"The reward functions are {', '.join(names)}: the columns of type double after the completion "
            "(the trainer's log does not name them).",
        )
    if not names:
        raise InputError(f"{file.path} has no column of rewards.", hint="Use --reader generic --reward-column NAME.")

    def weighted(weights: Sequence[float], *missing: str) -> RewardWeights:
        return RewardWeights(weights=dict(zip(names, weights, strict=True)), inferred=inferred, missing=missing)

    def shared(num_functions: int) -> RewardWeights:  # functions share a name: the table has one column for them
        summary = f"{num_functions} reward functions have {len(names)} name{'' if len(names) == 1 else 's'}"
        missing = (
            f"{summary} ({', '.join(names)}), and the table has one column a name: what the rewards add up to is not "
            "logged. Give each function a __name__ of its own in the next run."
        )
        return weighted([math.nan] * len(names), missing)

    equal_weights = [1.0] * len(names)
    named_weights = settings.get("reward_weights")
    if isinstance(named_weights, list) and len(named_weights) > len(names) and set(names) <= set(state.reward_names):
        return shared(len(named_weights))
    if named_weights is not None:
        return weighted(list(named_reward_weights(names, settings).values()))
    # For each logged step with all of them, the means of the functions and the mean scalar reward, [N, K + 1].
    keys = [*(f"rewards/{name}/mean" for name in names), "reward"]
    means = [[metrics.get(key, math.nan) for key in keys] for metrics in state.metrics.values()]
    entries = np.array([entry for entry in means if all(map(math.isfinite, entry))]).reshape(-1, len(keys))
    fitted = _fitted(entries[:, :-1], entries[:, -1])
    if "reward_weights" in settings.values:  # null: TRL's default
        if fitted and max(fitted) >= 2.0 and all(map(float.is_integer, fitted)):
            return shared(int(sum(fitted)))
        return weighted(equal_weights)
    unknown = "Reward weights are not known, and {}; 1 each was used (--run-config gives them)."
    if any(step_file.lacks(name) for step_file in files for name in names):
        return weighted(equal_weights, unknown.format("means over other rollouts do not tell them"))
    if fitted is None:
        return weighted(equal_weights, unknown.format(f"{len(entries)} logged steps do not determine them"))
    if fitted != [1.0]:
        text = ", ".join(f"{name} {weight:g}" for name, weight in zip(names, fitted, strict=True))
        inferred = (*inferred, f"Reward weights fitted to {len(entries)} logged steps: {text}.")
    return weighted(fitted)


def named_reward_weights(names: Sequence[str], settings: TrainerSettings) -> dict[str, float]:
    """The weights that the arguments give reward functions; an InputError where they are none, or not as many."""
    weights = settings.get("reward_weights")
    if (
        not isinstance(weights, list)
        or len(weights) != len(names)
        or any(finite_or_none(weight) is None for weight in weights)
    ):
        raise InputError(
            f"{settings.origin} gives reward_weights {weights}; the log has {len(names)} reward functions: "
            f"{', '.join(names)}.",
            hint="Give one weight a reward function, in the order of the columns.",
        )
    return dict(zip(names, map(float, weights), strict=True))


def scalar_rewards(numbers: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    """Weighted sums of functions' rewards [N], NaN where none applies; one that does not is left out, as in TRL."""
    total, applies = np.zeros(()), np.zeros((), dtype=np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        for name, values in numbers.items():
            total = total + np.where(np.isnan(values), 0.0, weights[name] * values)
            applies = applies | ~np.isnan(values)
    return np.where(applies, total, math.nan)


def _fitted(means: Floats, totals: Floats) -> list[float] | None:
    """Weights, to six digits, with which means [N, K] of functions add up to totals [N]; None where they do not fit."""
    if len(means) < means.shape[1] or not np.any(means) or np.linalg.cond(means) > _MAX_CONDITION:
        return None
    solution = np.linalg.lstsq(means, totals, rcond=None)[0]
    weights = np.asarray(solution, dtype=np.float64).round(6)
    residual = np.abs(means @ weights - totals).max()
    fits = bool(residual <= _FIT_TOLERANCE * max(1.0, np.abs(totals).max()))
    return [float(weight) for weight in weights] if fits else None
