"""From folders to finished runs, each with its settings and its numbers.

Shapes: S steps of a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.copies import as_named
from gradscope.diagnostics.compare import means as means_of_runs
from gradscope.diagnostics.degeneracy.reward_functions import side_rewards
from gradscope.diagnostics.logged.metrics import common_metrics
from gradscope.diagnostics.passk.comparison import Samples
from gradscope.diagnostics.passk.measure import read_samples
from gradscope.diagnostics.spike.measure import levels_left
from gradscope.errors import GradscopeError, InputError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.metrics.outcomes.reward_shares import frac_incoherent
from gradscope.metrics.uncertainty.intervals import bonferroni
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
_REWARD_MEANS = ("train_reward", "reward_trend")
SAMPLES_HINT = "gradscope passk compares samples."
_DRAWDOWN_PARTS = 10
_SEED_IN_NAME = re.compile(r"(?:^|[-_./ ])(?:seed|s)[-_=]?([0-9]{1,9})(?=$|[-_./ ])", re.IGNORECASE)
_COUNTED = {"num_rewarded", "num_incoherent"}
_SAMPLE_FORMATS = {format.name for format in FORMATS} - {format.name for format in TRAINERS} - {"generic"}
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
    logged: Mapping[str, NDArray[np.float64]] = {}
    """Metric -> what the trainer logged of it at each step, [S]; only such as it logged at all of them."""
    levels_left: tuple[str, ...] = ()  # sentences on what has left its level for good
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
            values |= {name: trend.estimate.value for name, trend in _reward_trend(self).items()}
            values["reward_drawdown"] = drawdown(self.reward)
        if self.rewards is not None:
            for name, number in means_of_runs.completion_lengths(self.rewards).items():
                values[name] = number.mean if isinstance(number, means_of_runs.GroupMean) else number.estimate.value
        values |= {name: number.estimate.value for name, number in _logged_means(self).items()}
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
            # a recorder's files of somebody's script are a log
            is_log = forced or not run_folder.manifest_path(folder).is_file()
            is_log = is_log or "steps" not in run_folder.read_manifest(folder).config
            runs.append(_read_log(folder, read, progress) if is_log else _read_run(folder))
        except GradscopeError as error:
            left_out[as_named(str(folder))] = error
    return _with_run_names(runs), left_out


def _with_run_names(runs: Sequence[ComparedRun]) -> tuple[ComparedRun, ...]:
    """Give logs that state no differing setting the setting ``run``: they are not one run made twice."""
    # It is the run's name, without the seed where the names have one each and several seeds share the rest.
    named = [
        run.log is not None and any(other is not run and not _is_distinct(run, other) for other in runs) for run in runs
    ]
    names = names_of([run.path for run in runs])
    seeds = [_SEED_IN_NAME.search(name) for name in names]
    rests = [_SEED_IN_NAME.sub("", name, count=1) for name in names]
    cells = {(rest, int(seed[1])) for rest, seed in zip(rests, seeds, strict=True) if seed}
    if all(named) and len(cells) == len(runs) and 1 < len(set(rests)) < len(runs):
        return tuple(
            replace(run, settings={**run.settings, "run": rest}, seed=int(seed[1]), has_seed_in_name=True)
            for run, rest, seed in zip(runs, rests, filter(None, seeds), strict=True)
        )
    return tuple(
        replace(run, settings={**run.settings, "run": name}) if is_named else run
        for run, name, is_named in zip(runs, names, named, strict=True)
    )


def _is_distinct(run: ComparedRun, other: ComparedRun) -> bool:
    """Whether two runs have different seeds, or both state a setting with different values."""
    shared = run.settings.keys() & other.settings.keys()
    is_known = UNKNOWN not in (run.advantage, other.advantage)
    return (
        run.seed != other.seed
        or any(repr(run.settings[name]) != repr(other.settings[name]) for name in shared)
        or (is_known and run.advantage != other.advantage)
    )


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
            logged={name: values[is_common] for name, values in run.logged.items()},
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


def _read_run(folder: Path) -> ComparedRun:
    manifest = run_folder.read_manifest(folder)
    metrics = run_folder.read_metrics(folder)
    steps = int(manifest.config["steps"])
    absent = [step for step in range(1, steps + 1) if step not in metrics]
    if absent:
        raise InputError(f"{steps - len(absent)} of {steps} steps are done", hint="Finish it with --resume.")
    counts = [(row["num_rewarded"], row["num_incoherent"]) for row in metrics.values() if row.keys() >= _COUNTED]
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
        return _read_metrics(path, run)
    if run.source.format in _SAMPLE_FORMATS:
        raise InputError("it holds samples of an evaluation and no training steps", hint=SAMPLES_HINT)
    table = run.judged_rewards
    table = table.select(table.is_complete)
    if not len(table):
        raise InputError("no group has all its rewards", hint="Log the reward of each rollout.")
    steps, step = np.unique(table.step, return_inverse=True)
    num_judged = np.bincount(step, weights=table.size > 1)
    sizes, seed = sizes_of(run.groups), run.settings.get("seed", 0)
    settings = {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in run.settings.of_recipe.items()
        if run.settings.origin is not None
    }
    return ComparedRun(
        path=path,
        advantage=UNKNOWN,
        seed=seed if isinstance(seed, int) else 0,
        settings=settings,
        steps=steps,
        reward=np.bincount(step, weights=table.sums(table.reward)) / np.bincount(step, weights=table.size),
        degenerate=np.bincount(step, weights=table.is_dead) / num_judged if num_judged.all() else np.zeros(0),
        logged=_logged(run, steps),
        levels_left=levels_left(run),
        group_size=sizes[0] if len(sizes) == 1 else None,
        log=run.source,
        rewards=table,
        sides=side_rewards(run, ""),
    )


def _read_metrics(path: Path, run: Run) -> ComparedRun:
    names = [name for name in ("reward", "frac_reward_zero_std") if name in run.step_metrics.columns]
    if not any(logged.keys() >= set(names) for logged in run.metrics.values()):
        names = names[:1]  # each is logged at steps of its own, as by two callbacks
    metrics = {step: logged for step, logged in run.metrics.items() if logged.keys() >= set(names)}
    series = {name: _series(metrics, name) for name in names}
    steps = np.array(sorted(metrics), dtype=np.int64)
    return ComparedRun(
        path=path,
        advantage=UNKNOWN,
        seed=0,
        settings={},
        steps=steps,
        reward=series.get("reward", np.zeros(0)),
        degenerate=series.get("frac_reward_zero_std", np.zeros(0)),
        logged=_logged(run, steps),
        levels_left=levels_left(run),
        log=run.source,
    )


LOGGED = {
    "completion_tokens": "completions/mean_length",
    "mean_clipped_ratio": "completions/clipped_ratio",
    "mean_entropy": "entropy",
    "mean_kl": "kl",
    "mean_grad_norm": "grad_norm",
}
"""Metric of a comparison -> the trainer's own number of each step that it is the mean of."""


def _logged(run: Run, steps: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    series: dict[str, NDArray[np.float64]] = {}
    metrics = common_metrics(run)
    for metric, name in LOGGED.items():
        logged_steps, values = metrics.series(name)
        is_compared = np.isin(logged_steps, steps)
        if is_compared.sum() == len(steps) and np.isfinite(values[is_compared]).all():
            series[metric] = values[is_compared]
    return series


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
    """A run with the shares of its reward functions, for which a run of ours is read."""
    if run.sides is not None:
        return run
    try:
        return replace(run, sides=side_rewards(read_run(run.path, rewards_only=True), ""))
    except GradscopeError:
        return run


def with_differences(pairs: Sequence[ComparedPair], first: ComparedRun, last: ComparedRun) -> tuple[ComparedPair, ...]:
    """Pairs of one run each, with the interval that their prompts give, or the steps of metrics alone."""
    # Numbers that are no mean over groups, such as the drawdown, runs whose rollouts cannot be read, and rewards in
    # two units have no such interval. The verdict is ``differ`` where zero is outside, corrected for all of them.
    differences = means_of_runs.changes(_means(first), _means(last))
    in_two_units = _REWARD_MEANS if unlike_rewards(first, last) else ()
    compared = {pair.metric for pair in pairs}.difference(in_two_units)
    differences = {name: change for name, change in differences.items() if name in compared}
    judged = []
    for pair in pairs:
        change = differences.get(pair.metric)
        differs = change is not None and bonferroni(change, len(differences)).side_of_zero != 0
        why = "the rewards of the two are in two units" if pair.metric in in_two_units else pair.undefined
        judged.append(replace(pair, within_runs=change, verdict="differ" if differs else pair.verdict, undefined=why))
    return tuple(judged)


def unlike_rewards(first: ComparedRun, second: ComparedRun) -> str:
    """Why mean rewards of two runs are in two units; empty where nothing says that they are."""
    # Two logs of one reader name other reward functions, both have two rewards and not the same (0 and 1, -1 and 1), or
    # all rewards of one lie above those of the other.
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
    is_disjoint = before[-1] < after[0] or after[-1] < before[0]
    if not is_disjoint and not (len(before) == len(after) == 2 and any(before != after)):
        return ""
    ends = " and ".join(f"{rewards[0]:.3g} to {rewards[-1]:.3g}" for rewards in (before, after))
    return f"Their rewards go from {ends}, so mean rewards are in two units."


def _reward_trend(run: ComparedRun) -> dict[str, means_of_runs.SeriesTrend]:
    return means_of_runs.trend_of("reward", run.steps[: len(run.reward)].tolist(), run.reward)


def _logged_means(run: ComparedRun) -> dict[str, means_of_runs.Number]:
    """The means of logged metrics; completion lengths, with their trend, only where there are no rollouts."""
    steps = tuple(run.steps.tolist())
    means: dict[str, means_of_runs.Number] = {
        name: means_of_runs.SeriesMean(steps, values) for name, values in run.logged.items()
    }
    if run.rewards is not None:
        means.pop("completion_tokens", None)
    elif "completion_tokens" in means:
        means |= means_of_runs.trend_of("completion_tokens", steps, run.logged["completion_tokens"])
    return means


def _means(run: ComparedRun) -> means_of_runs.Means:
    if run.log is not None and run.log.kind == "metrics":
        series = {"train_reward": run.reward, "mean_frac_reward_zero_std": run.degenerate}
        steps = tuple(run.steps.tolist())
        means = {name: means_of_runs.SeriesMean(steps, values) for name, values in series.items() if len(values)}
        return means | _reward_trend(run) | _logged_means(run)
    table = run.rewards
    if table is None:
        try:
            table = read_run(run.path, rewards_only=True).judged_rewards
        except GradscopeError:
            return {}
        table = table.select(table.is_complete & np.isin(table.step, run.steps))
    if not len(table):
        return {}
    numbers: dict[str, means_of_runs.Number] = {
        "train_reward": means_of_runs.reward_over_steps(table),
        **_reward_trend(run),
    }
    judged = table.select(table.size > 1)
    if set(judged.step.tolist()) == set(table.step.tolist()):
        numbers["mean_frac_reward_zero_std"] = means_of_runs.dead_over_steps(judged)
    return numbers | means_of_runs.completion_lengths(table) | _logged_means(run)
