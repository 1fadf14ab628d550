"""Run: everything that was read from disk about one training run, in the same shape for every trainer."""

from __future__ import annotations

import math
import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.reason import Reason
from gradscope.results.source import Source
from gradscope.rollouts.arrays import Counts, Floats
from gradscope.rollouts.groups import (
    GroupsOfTable,
    GroupsOnDisk,
    RewardTable,
    RolloutGroup,
    groups_at,
    reward_table,
    steps_of,
)

_AT_ONCE = 1 << 12  # steps that are made into dictionaries at once
_NEARBY_STEPS = 32  # steps before and after one whose digits tell how a metric was rounded
FLOAT32_DIGITS = 8  # of as many digits a number was not rounded


def written_digits(values: Iterable[float]) -> tuple[int, int]:
    """The most digits that a number other than 0 was written with, and the exponent of the last; NaN has none.

    >>> written_digits([1.9025, 0.18, 0.0])
    (5, -4)
    """
    parts = [Decimal(repr(value)).normalize().as_tuple() for value in values if value and math.isfinite(value)]
    num_digits = max((len(part.digits) for part in parts), default=0)
    return num_digits, min((int(part.exponent) for part in parts), default=0)


class Numbers(Struct, frozen=True):
    """A metric that N of R rows have."""

    rows: Counts | None  # their indices, ascending, [N]; None: all rows
    values: Floats  # [N]

    def take(self, rows: Counts) -> Numbers:
        """The same metric of the rows with these ascending indices."""
        if self.rows is None:
            return Numbers(None, self.values[rows])
        positions = np.searchsorted(self.rows, rows)
        has = np.append(self.rows, -1)[positions] == rows
        return Numbers(np.flatnonzero(has), self.values[positions[has]])


class StepMetrics(Mapping[int, Mapping[str, float]]):
    """Step -> name -> number, ascending by step."""

    def __init__(self, steps: Counts, columns: Mapping[str, Numbers], not_shares: frozenset[str] = frozenset()) -> None:
        self.steps = steps  # ascending, [S]
        self.columns = columns  # the metric of each name over them
        self.not_shares = not_shares  # metrics whose NaN are logged numbers outside [0, 1]

    @classmethod
    def from_mapping(cls, metrics: Mapping[int, Mapping[str, float]]) -> StepMetrics:
        """Columns of a mapping from steps to metrics."""
        if isinstance(metrics, cls):
            return metrics
        collected: dict[str, tuple[list[int], list[float]]] = {}  # name -> rows, values
        steps = sorted(metrics)
        for row, step in enumerate(steps):
            for name, value in metrics[step].items():
                rows, values = collected.setdefault(name, ([], []))
                rows.append(row)
                values.append(value)
        series = {
            name: Numbers(np.array(rows, dtype=np.int64), np.array(values, dtype=np.float64))
            for name, (rows, values) in collected.items()
        }
        return cls(np.array(steps, dtype=np.int64), series)

    def series(self, name: str) -> tuple[Counts, Floats]:
        """The steps that have a number, ascending, [N], and the numbers, [N]."""
        column = self.columns.get(name)
        if column is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        return (self.steps if column.rows is None else self.steps[column.rows]), column.values

    def by_step(self, name: str) -> dict[int, float]:
        """Step -> the number, of the steps that have it."""
        steps, values = self.series(name)
        return dict(zip(steps.tolist(), values.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps.tolist())

    def __getitem__(self, step: int) -> dict[str, float]:
        row = int(np.searchsorted(self.steps, step))
        if row == len(self.steps) or self.steps[row] != step:
            raise KeyError(step)
        return self._rows(row, row + 1)[0]

    def items(self) -> ItemsView[int, Mapping[str, float]]:
        """Steps with their numbers."""
        return _Items(self)

    def values(self) -> ValuesView[Mapping[str, float]]:
        """The numbers of each step."""
        return _Values(self)

    def rows(self) -> Iterator[dict[str, float]]:
        """The numbers of each step, made in blocks of thousands."""
        for start in range(0, len(self), _AT_ONCE):
            yield from self._rows(start, min(start + _AT_ONCE, len(self)))

    def _rows(self, start: int, stop: int) -> list[dict[str, float]]:
        rows: list[dict[str, float]] = [{} for _ in range(stop - start)]
        for name, column in self.columns.items():
            low, high = (start, stop) if column.rows is None else np.searchsorted(column.rows, (start, stop)).tolist()
            offsets = range(stop - start) if column.rows is None else (column.rows[low:high] - start).tolist()
            for offset, value in zip(offsets, column.values[low:high].tolist(), strict=True):
                rows[offset][name] = value
        return rows


class _Items(ItemsView[int, Mapping[str, float]]):
    _mapping: StepMetrics

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, float]]]:
        return zip(self._mapping, self._mapping.rows(), strict=True)


class _Values(ValuesView[Mapping[str, float]]):
    _mapping: StepMetrics

    def __iter__(self) -> Iterator[Mapping[str, float]]:
        return self._mapping.rows()


class TrlVersion(Struct, frozen=True):
    """TRL's version, which may not be known."""

    numbers: tuple[int, ...] = ()  # major, minor and so on; empty where the version is not known

    @classmethod
    def parse(cls, text: Any) -> TrlVersion:
        """Major and minor number as TRL writes them into a model card; any other text counts as not known.

        Example:
            >>> TrlVersion.parse("1.9.0.dev0").is_before(1, 10)
            True
        """
        match = re.match(r"([0-9]+)\.([0-9]+)", str(text or ""))
        return cls(tuple(map(int, match.groups())) if match else ())

    @property
    def is_known(self) -> bool:
        """Whether the version is known."""
        return bool(self.numbers)

    def is_before(self, *numbers: int) -> bool:
        """Whether it is known and older than another; an unknown version counts as new."""
        return self.is_known and self.numbers < numbers


UNKNOWN_TRL = TrlVersion()

VERSION_HINT = 'Give TRL\'s version with --run-config: {"trl_version": "1.16.0", ...}.'
"""What to do where a loss depends on a version that is not known."""


class WeightsRef(Struct, frozen=True, kw_only=True):
    """A set of weights on disk."""

    num_updates: int  # how many optimizer updates they have had: 0 is the model before the first
    path: Path  # a Hugging Face model folder or a PEFT adapter folder
    kind: Literal["full", "adapter"]  # whether ``path`` holds the whole model or an adapter
    base: str | None = None
    """For an adapter: folder or hub id of its base model, with moved relative paths already resolved."""
    is_base_given: bool = False  # whether a person named ``base``: only then is a hub asked for it
    kept_from: Path | None = None
    """For a model from which training was resumed: the model before its first update, whose tensors stayed where the
    checkpoint has others than the model by name, as Transformers reads it then; None: all are the checkpoint's."""


_NOT_OF_RECIPE = (
    *("output_dir", "logging_dir", "run_name", "default_local_dir", "experiment_name", "project_name"),
    *("seed", "data_seed", "report_to", "logging_steps", "save_steps", "save_strategy", "hub_model_id"),
)


class TrainerSettings(Struct, frozen=True, kw_only=True):
    """The trainer's known arguments: TRL's, or another trainer's by their paths in its configuration."""

    values: Mapping[str, Any] = {}
    """Argument -> value, only those that are known: ``loss_type``, ``beta``, ``temperature``, ``scale_rewards``,
    ``num_generations``, ``max_completion_length``, ``reward_weights``, ``epsilon``, ``num_iterations``, ...; of another
    trainer, which ``trainer`` then names, ``actor_rollout_ref.actor.loss_agg_mode`` and the like."""
    origin: str | None = None  # their source: a file's path, "the run's manifest"; None where none are known

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, by TRL's name of it; the default where it is not known or null."""
        value = self.values.get(name)
        return default if value is None else value

    def with_values(self, values: Mapping[str, Any]) -> TrainerSettings:
        """The same with some arguments of other values."""
        return replace(self, values={**self.values, **values})

    def lookup(self, path: str, default: Any = None) -> Any:
        """An argument of a nested configuration, by its path or its last name; the default where not known or null.

        Example:
            >>> TrainerSettings(values={"actor.kl_loss_coef": 0.1, "n": 8}).lookup("actor.kl_loss_coef")
            0.1
            >>> TrainerSettings(values={"actor.kl_loss_coef": 0.1, "n": 8}).lookup("rollout.n")
            8
        """
        return self.get(path, self.get(path.rpartition(".")[2], default))

    @property
    def of_recipe(self) -> dict[str, Any]:
        """Those that are known and bear on the result, which folders, names and seeds do not."""
        names = {name: name.rpartition(".")[2] for name, value in self.values.items() if value is not None}
        return {name: self.values[name] for name, last in names.items() if last not in _NOT_OF_RECIPE}

    @property
    def name_precision(self) -> bool:
        """Whether they say in which precision the trainer computed."""
        return self.get("bf16") is not None or self.get("fp16") is not None

    @property
    def are_of_rloo(self) -> bool:
        """Whether they are those of TRL's RLOOTrainer. Scripts, too, may have a ``normalize_advantages``."""
        return "reward_clip_range" in self.values and "loss_type" not in self.values

    @property
    def count_dead_batches(self) -> bool:
        """Whether TRL's ``frac_reward_zero_std`` tests the rewards of the batch, not of each group."""
        aggregation = self.get("multi_objective_aggregation")
        return bool(self.get("scale_rewards") == "batch" or aggregation == "normalize_then_sum")

    @property
    def updates_per_batch(self) -> int:
        """How many updates TRL makes with one batch of rollouts."""
        accumulation = int(self.get("gradient_accumulation_steps", 1))
        per_generation = int(self.get("steps_per_generation", accumulation))
        return max(1, per_generation * int(self.get("num_iterations", 1)) // max(1, accumulation))


class Run(Struct, frozen=True, kw_only=True, dict=True):
    """One run as read from disk."""

    path: Path  # the folder or file that was given
    source: Source  # what was recognized, inferred, missing and quarantined
    groups: Sequence[RolloutGroup]
    """Training rollouts by step, then in the order of the log. Evaluation rows are not among them. They
    mostly stay in the log, and are read back a step at a time as they are asked for."""
    metrics: Mapping[int, Mapping[str, float]] = {}
    """Step -> what the trainer logged at that step (``grad_norm``, ``frac_reward_zero_std``, ``reward``, ...)."""
    settings: TrainerSettings = TrainerSettings()  # the trainer's arguments
    weights: tuple[WeightsRef, ...] = ()  # all sets of weights on disk, by ``num_updates``
    damaged_weights: Mapping[int, str] = {}
    """Number of updates -> why the weights in the folder of that checkpoint are unusable."""
    unmerged_weights: Mapping[int, Reason] = {}
    """Number of updates -> what to run before that checkpoint, which is in shards, can be read."""
    tokenizer: Path | None = None  # a folder that holds the tokenizer, where one was found
    notes: Mapping[int, Reason] = {}
    """Step -> why its rollouts are not those of its update (a batch that several updates share, ...), or are lost."""
    windows: Mapping[int, int] = {}
    """Step -> over how many steps its metrics are means, where that is more than one. ``grad_norm`` is the step's own
    all the same."""
    unread_metrics: str = ""  # why metrics next to the rollouts were not read, in a sentence; empty where they were
    repeats: Mapping[int, int] = {}
    """Step -> the step whose rollouts its update used again, all of them; such a step has no rollouts of its own."""

    def __repr__(self) -> str:
        """A summary without the rollouts."""
        size = f"{len(self.steps)} steps, {len(self.groups)} groups"
        return f"<{type(self).__name__} of {self.source.path}: {self.source.recognized}; {size}>"

    @cached_property
    def step_metrics(self) -> StepMetrics:
        """The metrics as columns, so that reading one does not walk over all steps; a share is one of groups."""
        logged = StepMetrics.from_mapping(self.metrics)
        if not self.settings.count_dead_batches:
            return logged
        columns = {name: column for name, column in logged.columns.items() if name != "frac_reward_zero_std"}
        return StepMetrics(logged.steps, columns, logged.not_shares)

    def half_unit(self, step: int, name: str) -> float:
        """Half of the last digit in which a metric was logged, by the steps around; 0.0 where it has those of float32.

        Example:
            >>> metrics = {1: {"grad_norm": 1.9025}, 2: {"grad_norm": 0.18}}
            >>> source = Source(path="a", format="generic", recognized="a log")
            >>> Run(path=Path("a"), source=source, groups=(), metrics=metrics).half_unit(2, "grad_norm")
            5e-05
        """
        steps, values = self.step_metrics.series(name)
        index = int(np.searchsorted(steps, step))
        num_digits, last = written_digits(values[max(0, index - _NEARBY_STEPS) : index + _NEARBY_STEPS].tolist())
        value = self.metrics.get(step, {}).get(name)
        if not (value and math.isfinite(value) and last < 0 and num_digits < FLOAT32_DIGITS):  # else it may be whole
            return 0.0
        return 0.5 * 10.0 ** max(last, math.floor(math.log10(abs(value))) + 1 - num_digits)

    def with_missing(self, *sentences: str) -> Run:
        """The same with further sentences on what is missing."""
        return replace(self, source=replace(self.source, missing=(*self.source.missing, *sentences)))

    def without_metrics(self, reason: str) -> Run:
        """The same, which says why metrics next to the rollouts were not read."""
        return replace(self.with_missing(reason), unread_metrics=reason)

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that have rollouts, ascending."""
        return steps_of(self.groups)

    @property
    def every_step(self) -> tuple[int, ...]:
        """Every step of the log, ascending: those with rollouts and those with metrics alone."""
        logged = (self.step_metrics.series(name)[0] for name in self.step_metrics.columns)
        return tuple(np.unique(np.concatenate([np.array(self.updates, dtype=np.int64), *logged])).tolist())

    @property
    def trained_by_trl(self) -> bool:
        """Whether TRL's trainer made the run, as it makes our own."""
        return self.source.format in ("trl", "gradscope")

    @property
    def updates(self) -> tuple[int, ...]:
        """Steps whose update has its rollouts in the log, including those that used a batch again, ascending."""
        return tuple(sorted({*self.steps, *self.repeats}))

    def groups_at(self, step: int) -> tuple[RolloutGroup, ...]:
        """The groups that a step's update used, in the order of the log; empty where the step was not logged."""
        sampled = self.repeats.get(step, step)
        groups = groups_at(self.groups, sampled)
        return groups if sampled == step else tuple(replace(group, step=step) for group in groups)

    def by_step(self) -> Iterator[tuple[int, tuple[RolloutGroup, ...]]]:
        """The groups of each step that has any, ascending, a step at a time; of a ``measured`` log without texts."""
        if self.measured is not None:
            return GroupsOfTable(self.measured).build_by_step()
        if isinstance(self.groups, GroupsOnDisk):
            return ((step, groups_at(self.groups, step)) for step in self.steps)
        groups_of: dict[int, list[RolloutGroup]] = {step: [] for step in self.steps}
        for group in self.groups:
            groups_of[group.step].append(group)
        return ((step, tuple(groups)) for step, groups in groups_of.items())

    @cached_property
    def measured(self) -> RewardTable | None:
        """The table of a log on disk whose completions were measured and have no tokens: no rollout has more."""
        table = self.groups.table if isinstance(self.groups, GroupsOnDisk) else None
        return table if table is not None and table.measures_completions else None

    @property
    def judged_rewards(self) -> RewardTable:
        """The rewards by which groups are judged: TRL since 1.6 judges one by its scored rollouts, of two or more."""
        table, version = reward_table(self.groups), TrlVersion.parse(self.settings.get("trl_version"))
        if not self.trained_by_trl or not version.is_known or version.is_before(1, 6):
            return table
        is_scored = ~np.isnan(table.reward)
        return table.with_rows(is_scored | np.repeat(table.sums(is_scored) < 2, table.size))

    def is_means(self, step: int) -> bool:
        """Whether the metrics of a step are not of its rollouts alone."""
        return step in self.notes or step in self.windows

    def weights_before(self, step: int) -> WeightsRef | None:
        """The weights, after ``step - 1`` updates, that the update of ``step`` started from; None where not on disk."""
        return next((weights for weights in self.weights if weights.num_updates == step - 1), None)

    def weights_after(self, step: int) -> WeightsRef | None:
        """The first weights on disk that have had the update of ``step``; None without any."""
        later = (weights for weights in self.weights if weights.num_updates >= step)
        return min(later, key=lambda weights: weights.num_updates, default=None)
