"""From folders to finished runs, each with its settings and its numbers.

Shapes: S steps of a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.copies import as_named
from gradscope.diagnostics.degeneracy.reward_functions import side_rewards
from gradscope.diagnostics.passk.measure import Samples, read_samples
from gradscope.errors import GradscopeError, InputError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.metrics.outcomes.reward_shares import frac_incoherent
from gradscope.metrics.uncertainty.bootstrap import (
    bootstrap_difference,
    bootstrap_shares,
    bootstrap_statistics,
    cluster_sums,
)
from gradscope.metrics.uncertainty.intervals import bonferroni, difference_of
from gradscope.metrics.uncertainty.steps import mean_difference, mean_of_steps, trend, widened_by_steps
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.compare import UNKNOWN, ComparedPair
from gradscope.results.degeneracy import SideRewards
from gradscope.results.source import Source
from gradscope.rollouts import run_folder
from gradscope.rollouts.fetch import fetched, names_of
from gradscope.rollouts.groups import RewardTable, sizes_of
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import FORMATS, TRAINERS, read_run, runs_below
from gradscope.rollouts.run import Run
from gradscope.say import non_finite_word

_NOT_SETTINGS = ("output", "device", "checkpoint_every", "seed", "advantage")
"""Fields of a configuration that do not bear on the result, and the two that have a place of their own."""
_NOT_SETTINGS_OF_TRAINERS = (
    *("output_dir", "logging_dir", "run_name", "default_local_dir", "experiment_name", "project_name"),
    *("seed", "data_seed", "report_to", "logging_steps", "save_steps", "save_strategy", "hub_model_id"),
)
"""The same of other trainers, by the last part of their names."""
_IN_UNITS_OF_REWARDS = ("train_reward", "reward_trend")
OF_SAMPLES = "gradscope passk compares samples."
_DRAWDOWN_PARTS = 10
_SEED_IN_NAME = re.compile(r"(?:^|[-_./ ])(?:seed|s)[-_=]?([0-9]{1,9})(?=$|[-_./ ])", re.IGNORECASE)
_COUNTED = {"num_rewarded", "num_incoherent"}
_OF_ONE_POLICY = {format.name for format in FORMATS} - {format.name for format in TRAINERS} - {"generic"}
"""Readers of samples and evaluations."""


class ComparedRun(Struct, frozen=True, kw_only=True):
    """A finished run."""

    path: Path  # its folder, or its log
    advantage: str  # its formulation; ``unknown`` of a run that is not ours, whose settings are not known by one name
    seed: int
    has_seed_in_name: bool = False  # whether the seed is that in its name, as its log states none
    settings: Mapping[str, Any]  # everything else that bears on its result
    steps: NDArray[np.int64]  # its steps, ascending, [S]
    reward: NDArray[np.float64]  # mean reward of each step, [S]; empty where metrics alone do not have it
    degenerate: NDArray[np.float64]  # share of degenerate groups of each step, [S]; may be empty, too
    incoherence: Estimate | None = None
    """Share of the rewarded rollouts whose reasoning has a wrong step; None where the run did not count them."""
    heldout: Samples | None = None  # samples of the held-out prompts after training; None where there are none
    kilotokens: float | None = None
    """Thousands of tokens that a step sampled, prompts included; None where the trainer did not count them."""
    group_size: int | None = None  # rollouts of a group; None where groups are of several sizes
    log: Source | None = None  # what a reader made of the log of a run that is not ours
    rewards: RewardTable | None = None  # the groups of that log that have all their rewards
    sides: SideRewards | None = None  # how much of that log its main reward decides

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were read."""
        if self.log is not None:
            return self.log.files
        files = (
            run_folder.manifest_path(self.path),
            run_folder.metrics_path(self.path),
            run_folder.heldout_path(self.path, "after"),
        )
        return tuple(as_named(str(file)) for file in files if file.is_file())

    def values(self, ks: Sequence[int]) -> dict[str, float]:
        """Metric -> value; ``ks`` are budgets that every held-out prompt has samples for."""
        values: dict[str, float | None] = {}
        if self.heldout is not None:
            counts = (self.heldout.num_samples, self.heldout.num_correct)
            values = {f"pass@{k}": float(pass_at_k(*counts, k).mean()) for k in ks}
        if len(self.reward):
            values["train_reward"] = float(self.reward.mean())
            values |= {name: of.estimate.value for name, of in _reward_trend(self).items()}
            values["reward_drawdown"] = drawdown(self.reward)
        if self.rewards is not None:
            for name, of in completion_lengths(self.rewards).items():
                values[name] = of.mean if isinstance(of, GroupMean) else of.estimate.value
        values["mean_frac_reward_zero_std"] = float(self.degenerate.mean()) if len(self.degenerate) else None
        values["frac_incoherent"] = None if self.incoherence is None else self.incoherence.value
        values["kilotokens_per_step"] = self.kilotokens
        return {name: value for name, value in values.items() if value is not None}


def find_runs(paths: Sequence[str | Path]) -> tuple[Path, ...]:
    """Runs under paths, one or two levels down, each once, in order; a path that holds none stands for itself."""
    folders: list[Path] = []
    for path in map(fetched, paths):
        patterns = ("manifest.json", "*/manifest.json", "*/*/manifest.json")
        ours = sorted({file.parent for pattern in patterns for file in path.glob(pattern)})
        folders += ours or runs_below(path) or [path]
    return tuple(dict.fromkeys(folders))


def read_runs(
    folders: Sequence[Path], read: ReadOptions | None = None, progress: ProgressCallback = no_progress
) -> tuple[tuple[ComparedRun, ...], dict[str, GradscopeError]]:
    """The runs that are finished, and folder -> error of those that are left out."""
    runs: list[ComparedRun] = []
    left_out: dict[str, GradscopeError] = {}
    for folder in folders:
        try:
            forced = read is not None and read.for_run(folder).reader is not None
            runs.append(_read_log(folder, read, progress) if forced or not _is_ours(folder) else _read_run(folder))
        except GradscopeError as error:
            left_out[as_named(str(folder))] = error
    return _with_run_names(runs), left_out


def _with_run_names(runs: Sequence[ComparedRun]) -> tuple[ComparedRun, ...]:
    """Give logs that state no differing setting the setting ``run``: they are not one run made twice.

    It is the run's name, without the seed where the names have one each and several seeds share the rest.
    """
    named = [
        run.log is not None and any(other is not run and not _is_apart(run, other) for other in runs) for run in runs
    ]
    names = names_of([run.path for run in runs])
    seeds = [_SEED_IN_NAME.search(name) for name in names]
    rests = [_SEED_IN_NAME.sub("", name, count=1) for name in names]
    cells = {(rest, int(seed[1])) for rest, seed in zip(rests, seeds, strict=True) if seed}
    have_seeds = all(named) and len(cells) == len(runs) and 1 < len(set(rests)) < len(runs)
    if have_seeds:
        return tuple(
            replace(run, settings={**run.settings, "run": rest}, seed=int(seed[1]), has_seed_in_name=True)
            for run, rest, seed in zip(runs, rests, filter(None, seeds), strict=True)
        )
    return tuple(
        replace(run, settings={**run.settings, "run": name}) if is_named else run
        for run, name, is_named in zip(runs, names, named, strict=True)
    )


def _is_apart(run: ComparedRun, other: ComparedRun) -> bool:
    """Whether two runs have different seeds, or both state a setting with different values."""
    both = run.settings.keys() & other.settings.keys()
    unlike = [name for name in both if repr(run.settings[name]) != repr(other.settings[name])]
    is_known = UNKNOWN not in (run.advantage, other.advantage)
    return run.seed != other.seed or bool(unlike) or (is_known and run.advantage != other.advantage)


def on_common_steps(runs: Sequence[ComparedRun]) -> tuple[tuple[ComparedRun, ...], int]:
    """Runs at the steps that all of them have, as they are where that is none; and the number of these."""
    common = reduce(np.intersect1d, (run.steps for run in runs))
    if not len(common):
        return tuple(runs), 0

    def cut(run: ComparedRun) -> ComparedRun:
        is_common, table = np.isin(run.steps, common), run.rewards
        return replace(
            run,
            steps=common,
            reward=run.reward[is_common] if len(run.reward) else run.reward,
            degenerate=run.degenerate[is_common] if len(run.degenerate) else run.degenerate,
            rewards=None if table is None else table.select(np.isin(table.step, common)),
        )

    return tuple(run if len(run.steps) == len(common) else cut(run) for run in runs), len(common)


def drawdown(rewards: NDArray[np.float64]) -> float:
    """The largest fall from one tenth of a run to a later one, max over s < t of (R_s - R_t), of mean rewards, [S].

    >>> round(drawdown(np.array([0.0, 0.5, 0.2, 0.9, 0.6])), 2)
    0.3
    """
    parts = np.array([part.mean() for part in np.array_split(rewards, min(_DRAWDOWN_PARTS, len(rewards)))])
    return float(np.max(np.maximum.accumulate(parts) - parts))


def _is_ours(folder: Path) -> bool:
    """Whether a command of ours trained a run; what a recorder wrote of somebody's script is a log."""
    return run_folder.manifest_path(folder).is_file() and "steps" in run_folder.read_manifest(folder).config


def _read_run(folder: Path) -> ComparedRun:
    manifest = run_folder.read_manifest(folder)
    metrics = run_folder.read_metrics(folder)
    steps = int(manifest.config["steps"])
    absent = [step for step in range(1, steps + 1) if step not in metrics]
    if absent:
        raise InputError(f"{steps - len(absent)} of {steps} steps are done", hint="Finish it with --resume.")
    counts = [
        (values["num_rewarded"], values["num_incoherent"]) for values in metrics.values() if values.keys() >= _COUNTED
    ]
    return ComparedRun(
        path=folder,
        advantage=manifest.advantage,
        seed=manifest.seed,
        settings={name: value for name, value in manifest.config.items() if name not in _NOT_SETTINGS},
        steps=np.array(sorted(metrics)),
        reward=_series(metrics, "reward"),
        degenerate=_series(metrics, "num_degenerate_groups") / _series(metrics, "num_groups"),
        incoherence=frac_incoherent(*(int(sum(column)) for column in zip(*counts, strict=True))) if counts else None,
        heldout=_read_heldout(folder, manifest),
        kilotokens=metrics[steps]["num_tokens"] / steps / 1000 if "num_tokens" in metrics[steps] else None,
        group_size=int(manifest.config["group_size"]) if "group_size" in manifest.config else None,
    )


def _read_log(path: Path, read: ReadOptions | None, progress: ProgressCallback) -> ComparedRun:
    """A run of any other reader: its steps from its rollouts, its settings as far as they are logged."""
    run = read_run(path, read, rewards_only=True, measured="completions", progress=progress, metrics_alone=True)
    if run.source.kind == "metrics":
        return _of_metrics(path, run)
    if run.source.format in _OF_ONE_POLICY:
        raise InputError("it holds samples of an evaluation and no training steps", hint=OF_SAMPLES)
    table = run.judged_rewards
    table = table.select(table.is_complete)
    if not len(table):
        raise InputError("no group has all its rewards", hint="Log the reward of each rollout.")
    steps, of_group = np.unique(table.step, return_inverse=True)
    num_judged = np.bincount(of_group, weights=table.size > 1)
    sizes, seed = sizes_of(run.groups), run.settings.get("seed", 0)
    settings = {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in run.settings.values.items()
        if run.settings.origin is not None
        and value is not None
        and name.rpartition(".")[2] not in _NOT_SETTINGS_OF_TRAINERS
    }
    return ComparedRun(
        path=path,
        advantage=UNKNOWN,
        seed=seed if isinstance(seed, int) else 0,
        settings=settings,
        steps=steps,
        reward=np.bincount(of_group, weights=table.sums(table.reward)) / np.bincount(of_group, weights=table.size),
        degenerate=np.bincount(of_group, weights=table.is_dead) / num_judged if num_judged.all() else np.zeros(0),
        group_size=sizes[0] if len(sizes) == 1 else None,
        log=run.source,
        rewards=table,
        sides=side_rewards(run, ""),
    )


def _of_metrics(path: Path, run: Run) -> ComparedRun:
    names = [name for name in ("reward", "frac_reward_zero_std") if name in run.courses.columns]
    metrics = {step: logged for step, logged in run.metrics.items() if logged.keys() >= set(names)}
    series = {name: _series(metrics, name) for name in names}
    return ComparedRun(
        path=path,
        advantage=UNKNOWN,
        seed=0,
        settings={},
        steps=np.array(sorted(metrics), dtype=np.int64),
        reward=series.get("reward", np.zeros(0)),
        degenerate=series.get("frac_reward_zero_std", np.zeros(0)),
        log=run.source,
    )


def _read_heldout(folder: Path, manifest: run_folder.RunManifest) -> Samples | None:
    if not manifest.config.get("heldout_prompts", 0):
        return None
    file = run_folder.heldout_path(folder, "after")
    if not file.is_file():
        raise InputError("its held-out prompts were not sampled after training", hint="Finish it with --resume.")
    return read_samples(file)


def _series(metrics: Mapping[int, Mapping[str, float]], name: str) -> NDArray[np.float64]:
    absent = [step for step, values in metrics.items() if name not in values]
    if absent:
        raise InputError(f"step {absent[0]} has no {name}", hint="Make the run again.")
    broken = [step for step, values in sorted(metrics.items()) if not math.isfinite(values[name])]
    if broken:
        word = non_finite_word(metrics[broken[0]][name])
        raise InputError(f"step {broken[0]} logged {name} as {word}", hint="Make the run again.")
    return np.array([metrics[step][name] for step in sorted(metrics)], dtype=np.float64)


def with_side_rewards(run: ComparedRun) -> ComparedRun:
    """A run with how much of it its main reward decides, for which one of ours is read."""
    if run.sides is not None:
        return run
    try:
        return replace(run, sides=side_rewards(read_run(run.path, rewards_only=True), ""))
    except GradscopeError:
        return run


_MARKS = re.compile(r"<\|[^|<>]*\|>")
_LAST_TURN = re.compile(r"(?:.*\n)?\s*user\n+(.+?)\n+assistant\s*", re.DOTALL)
_MOSTLY_SHARED = 0.8
"""Share of the prompts of both from which they are resampled together: with fewer a resample may leave a run none."""

_Array = NDArray[np.float64]


def prompt_names(tables: Sequence[RewardTable]) -> list[list[str]]:
    """A list a run of what its prompts are called, so that a prompt has one name whichever reader read it."""
    # The question in their texts, without a chat template's marks, where all runs have texts and any of these is in
    # all; else the ids.
    ids = [list(table.prompts) for table in tables]
    if any(table.prompt_texts is None for table in tables):
        return ids
    texts = [
        [_question(text) or name for name, text in zip(table.prompts, table.prompt_texts or (), strict=True)]
        for table in tables
    ]
    return texts if set.intersection(*map(set, texts)) else ids


def _question(text: str) -> str:
    plain = _MARKS.sub("\n", text)
    match = _LAST_TURN.fullmatch(plain)
    return (match[1] if match else plain).strip()


def with_differences(
    pairs: Sequence[ComparedPair], first: ComparedRun, second: ComparedRun
) -> tuple[ComparedPair, ...]:
    """Pairs of one run each, with the interval that their prompts give, or the steps of metrics alone."""
    # A metric that is not a mean over groups, such as the drawdown, has no such interval; nor has a run whose
    # rollouts cannot be read, nor a mean of rewards in two units. Of those that have one the verdict is ``differ``
    # where zero is outside, for all of them at once.
    differences = changes(_means(first), _means(second))
    in_two_units = _IN_UNITS_OF_REWARDS if unlike_rewards(first, second) else ()
    compared = {pair.metric for pair in pairs}.difference(in_two_units)
    differences = {name: change for name, change in differences.items() if name in compared}
    judged = []
    for pair in pairs:
        within = differences.get(pair.metric)
        differs = within is not None and bonferroni(within, len(differences)).side_of_zero != 0
        why = "the rewards of the two are in two units" if pair.metric in in_two_units else pair.undefined
        judged.append(replace(pair, within_runs=within, verdict="differ" if differs else pair.verdict, undefined=why))
    return tuple(judged)


def unlike_rewards(first: ComparedRun, second: ComparedRun) -> str:
    """Why mean rewards of two runs are in two units; empty where nothing says that they are.

    Two logs of one reader name other reward functions, both have two rewards and not the same (0 and 1, -1 and 1), or
    all rewards of one lie above those of the other.
    """
    tables = [run.rewards for run in (first, second) if run.rewards is not None]
    if len(tables) < 2 or first.log is None or second.log is None:
        return ""
    if first.log.format == second.log.format and set(tables[0].rewards) != set(tables[1].rewards):
        return "Their rewards are of other functions, so mean rewards are in two units."
    return unlike_levels(*tables)


def unlike_levels(first: RewardTable, second: RewardTable) -> str:
    """The same by the rewards alone."""
    before, after = (np.unique(table.reward[~np.isnan(table.reward)]) for table in (first, second))
    if min(len(before), len(after)) < 2:
        return ""
    is_apart = before[-1] < after[0] or after[-1] < before[0]
    if not is_apart and not (len(before) == len(after) == 2 and any(before != after)):
        return ""
    ends = " and ".join(f"{rewards[0]:.3g} to {rewards[-1]:.3g}" for rewards in (before, after))
    return f"Their rewards go from {ends}, so mean rewards are in two units."


class GroupMean(Struct, frozen=True):
    """A weighted mean over groups; those of one prompt are resampled together."""

    table: RewardTable  # the groups
    values: _Array  # of each group, [J]
    weights: _Array  # what each counts, [J]

    @property
    def mean(self) -> float:
        """Its value, without the resampling that its interval takes."""
        return float(np.average(self.values, weights=self.weights))

    @property
    def estimate(self) -> Estimate:
        """Within the range that the values suggest."""
        least, greatest = float(self.values.min()), float(self.values.max())
        low, high = (0.0, 1.0) if least >= 0.0 and greatest <= 1.0 else (least, greatest)
        return self.within(low, (high - low) or 1.0)

    def within(self, low: float, reach: float) -> Estimate:
        """That of values that lie so far above ``low`` at most."""
        shares = np.clip((self.values - low) / reach, 0.0, 1.0)
        units = cluster_sums(np.column_stack([self.weights * shares, self.weights]), self.table.prompt)
        ((share,),) = bootstrap_shares([units])
        return share.map(lambda part: low + reach * part)


class CourseMean(Struct, frozen=True):
    """A mean over steps of what a trainer logged at each."""

    steps: tuple[int, ...]  # those that are compared, [S]
    values: _Array  # of each, [S]

    @property
    def estimate(self) -> Estimate:
        """Within the range that the values suggest."""
        return self.join(self.values).within(*self.ends)

    @property
    def ends(self) -> tuple[float, float]:
        """Between what it lies, as far as the values suggest it."""
        return 0.0 if self.values.min() >= 0.0 else -math.inf, 1.0 if self.values.max() <= 1.0 else math.inf

    def join(self, values: _Array) -> Estimate:
        """That of some values of these steps, with an interval that allows for the correlation of steps."""
        return mean_of_steps(values)


class CourseTrend(CourseMean, frozen=True):
    """How much a number of each step rises along its line, first to last: two runs of one mean may go opposite ways."""

    @property
    def ends(self) -> tuple[float, float]:
        """The most that it may fall or rise: of shares 1."""
        reach = 1.0 if self.values.min() >= 0.0 and self.values.max() <= 1.0 else math.inf
        return -reach, reach

    def join(self, values: _Array) -> Estimate:
        """That of some values of these steps, with an interval that allows for drifts; undefined below three."""
        return trend(self.steps, values)


Number = GroupMean | CourseMean
Means = Mapping[str, Number]
"""Metric -> its mean, over groups or over logged steps, or its trend; of one run, with all prompts of its log."""


def _trend_of(name: str, steps: Iterable[int], values: _Array) -> dict[str, CourseTrend]:
    """By its metric; empty where there are too few steps for a line."""
    of_steps = CourseTrend(tuple(steps), values)
    return {f"{name}_trend": of_steps} if len(values) and of_steps.estimate.is_defined else {}


def _reward_trend(run: ComparedRun) -> dict[str, CourseTrend]:
    return _trend_of("reward", run.steps[: len(run.reward)].tolist(), run.reward)


def _means(run: ComparedRun) -> Means:
    if run.log is not None and run.log.kind == "metrics":
        series = {"train_reward": run.reward, "mean_frac_reward_zero_std": run.degenerate}
        steps = tuple(run.steps.tolist())
        means = {name: CourseMean(steps, values) for name, values in series.items() if len(values)}
        return means | _reward_trend(run)
    table = run.rewards
    if table is None:
        try:
            table = read_run(run.path, rewards_only=True).judged_rewards
        except GradscopeError:
            return {}
        table = table.select(table.is_complete & np.isin(table.step, run.steps))
    if not len(table):
        return {}
    judged = table.select(table.size > 1)
    shares = (
        {"mean_frac_reward_zero_std": dead_over_steps(judged)}
        if set(judged.step.tolist()) == set(table.step.tolist())
        else {}
    )
    return {"train_reward": reward_over_steps(table)} | _reward_trend(run) | shares | completion_lengths(table)


def completion_lengths(table: RewardTable) -> dict[str, Number]:
    """Means and trends of the lengths of completions, by the metric in each unit that all of them have."""
    numbers: dict[str, Number] = {}
    for unit, lengths in (("tokens", table.num_tokens), ("characters", table.num_characters)):
        if lengths is not None and lengths.min() >= 0 < lengths.max():
            name, sums = f"completion_{unit}", table.sums(lengths)
            by_step = table.mean_by_step(sums, table.size)
            numbers[name] = mean_over_steps(table, sums, table.size)
            numbers |= _trend_of(name, by_step, np.array(list(by_step.values())))
    return numbers


def reward_change(first: RewardTable, second: RewardTable) -> Estimate:
    """How much higher the mean reward of some groups of a log is than that of others, over prompts."""
    tables = [replace(table, prompt_texts=None) for table in (first, second)]
    (change,) = changes(*({"": reward_over_steps(table)} for table in tables)).values()
    return change


def reward_over_steps(table: RewardTable) -> GroupMean:
    """The mean reward by :func:`mean_over_steps`."""
    return mean_over_steps(table, table.sums(table.reward), table.size)


def dead_over_steps(table: RewardTable) -> GroupMean:
    """The share of groups without a gradient by :func:`mean_over_steps`."""
    return mean_over_steps(table, table.is_dead, np.ones(len(table)))


def mean_over_steps(table: RewardTable, sums: NDArray[Any], counts: NDArray[Any]) -> GroupMean:
    """A mean over steps of each step's mean over what is counted, from sums and counts of the groups, [J] each.

    Every step counts alike, however many groups it has: so do the steps of metrics alone, which say no more than that.
    """
    of_group = np.unique(table.step, return_inverse=True)[1]
    return GroupMean(table, sums / counts, counts / np.bincount(of_group, weights=counts)[of_group])


def changes(first: Means, second: Means) -> dict[str, Estimate]:
    """Second minus first of what two runs both have; prompts that nearly all are of both are resampled together."""
    tables = [[mean.table for mean in means.values() if isinstance(mean, GroupMean)] for means in (first, second)]
    names = prompt_names([of_run[0] for of_run in tables]) if all(tables) else []
    number = {name: n for n, name in enumerate(dict.fromkeys(chain.from_iterable(names)))}
    prompts = [np.array([number[name] for name in of_run], dtype=np.int64) for of_run in names]
    return {name: _change(first[name], second[name], prompts) for name in first.keys() & second.keys()}


def _change(first: Number, second: Number, prompts: Sequence[NDArray[np.int64]]) -> Estimate:
    """Of one metric; ``prompts`` number the prompts of each log, one that both have alike."""
    if isinstance(first, CourseMean) and isinstance(second, CourseMean) and first.steps == second.steps:
        step_by_step = second.values - first.values  # what both do over their course is no noise
        (low, high), (other_low, other_high) = first.ends, second.ends
        return first.join(step_by_step).within(other_low - high, other_high - low)
    if not isinstance(first, GroupMean) or not isinstance(second, GroupMean):
        return difference_of(first.estimate, second.estimate)
    num_prompts = 1 + max(int(of_run.max()) for of_run in prompts)
    units = np.zeros((num_prompts, 4))  # [P, 4]: weighed values and weights of the first, and of the second
    for side, (mean, of_run) in enumerate(zip((first, second), prompts, strict=True)):
        prompt_index = of_run[mean.table.prompt]
        units[:, 2 * side] = np.bincount(prompt_index, weights=mean.weights * mean.values, minlength=num_prompts)
        units[:, 2 * side + 1] = np.bincount(prompt_index, weights=mean.weights, minlength=num_prompts)
    low = float(min(first.values.min(), second.values.min()))
    reach = float(max(first.values.max(), second.values.max())) - low
    by_prompts = _by_prompts(first, second, units, low, reach)
    pooled = (units[:, 0] + units[:, 2]) / np.maximum(units[:, 1] + units[:, 3], 1e-300)
    of_steps = [
        mean.table.mean_by_step(mean.weights * (mean.values - pooled[of_run[mean.table.prompt]]), mean.weights)
        for mean, of_run in zip((first, second), prompts, strict=True)
    ]
    if of_steps[0].keys() != of_steps[1].keys():
        return by_prompts  # parts of one run: what the policy did between them is no chance
    return widened_by_steps(by_prompts, mean_difference(*of_steps), reach=reach)


def _by_prompts(first: GroupMean, second: GroupMean, units: _Array, low: float, reach: float) -> Estimate:
    """The difference of two means of values from ``low`` to so far above it.

    Of each prompt its weighed values and weights in both, [P, 4], are resampled.
    """
    units = units[(units[:, 1] > 0) | (units[:, 3] > 0)]
    if np.mean((units[:, 1] > 0) & (units[:, 3] > 0)) >= _MOSTLY_SHARED:
        is_paired = len(units) == len(first.values) == len(second.values) and np.ptp(units[:, [1, 3]]) == 0
        if is_paired and 0 <= low <= low + reach <= 1:
            return bootstrap_difference(units[:, 0] / units[:, 1], units[:, 2] / units[:, 3])
        (difference,) = bootstrap_statistics(_difference_of_ratios, units, within=(-reach, reach))
        if difference.interval is not None or not difference.value:
            return difference  # else every prompt has changed by as much
    return difference_of(*(mean.within(low, reach or 1.0) for mean in (first, second)))


def _difference_of_ratios(sums: _Array) -> _Array:
    return sums[..., 2:3] / np.maximum(sums[..., 3:4], 1e-300) - sums[..., :1] / np.maximum(sums[..., 1:2], 1e-300)
