"""Runs that differ in one thing, set side by side: means over seeds, paired differences, tests that count themselves.

Runs with the same settings are a cell. Two cells are compared where exactly one thing differs, the formulation or one
setting; runs of one seed are pairs, for the seed decides prompts, their order and the sampler. All tests of a
comparison are one family, and their p-values are corrected for it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED
from gradscope.catalog.lookup import range_of
from gradscope.copies import as_named
from gradscope.diagnostics.compare import runs as compared_runs
from gradscope.diagnostics.compare.means import parting, prompt_names
from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.findings.compare import compare_findings, parting_sentence, shared_prompts
from gradscope.metrics.uncertainty import paired
from gradscope.progress import Progress, ProgressCallback, part, reporter
from gradscope.results.compare import UNKNOWN, ComparedCell, ComparedCurve, ComparedPair, CompareVerdict, Comparison
from gradscope.results.source import Source
from gradscope.rollouts.fetch import fetched, names_of
from gradscope.rollouts.read_options import ReadOptions
from gradscope.say import without_numbers

MIN_PAIRS = 8  # pairs from which sign flips can give a p-value below 0.01, so that more than one test can decide
LEVEL = 0.05  # a corrected p-value up to this counts
POWER = 0.8  # how often the least detectable difference would be decided


def with_verdicts(pairs: Sequence[ComparedPair]) -> tuple[ComparedPair, ...]:
    """Pairs with corrected p-values and what these claim, in the same order."""
    # Sign flips are corrected for the tests that can decide, those of 8 pairs or more; the t test for all that were
    # made.
    flips = [pair.sign_flip_p_value if pair.num_pairs >= MIN_PAIRS else None for pair in pairs]
    num_tests = sum(p is not None for p in flips)
    corrected = zip(pairs, paired.holm([pair.p_value for pair in pairs]), paired.holm(flips), strict=True)
    return tuple(
        replace(
            pair,
            p_holm=by_t,
            sign_flip_p_holm=by_flips,
            verdict=_verdict(by_t, by_flips),
            least_detectable=_least_detectable(pair, num_tests),
        )
        for pair, by_t, by_flips in corrected
    )


def _verdict(by_t: float | None, by_flips: float | None) -> CompareVerdict:
    if by_flips is not None and by_flips <= LEVEL:
        return "decides"
    return "suggests" if by_t is not None and by_t <= LEVEL else "open"


def _least_detectable(pair: ComparedPair, num_tests: int) -> Estimate:
    """The difference that would be decided four times in five as the smallest of the p-values, at the spread seen."""
    number = pair.num_pairs
    if number < MIN_PAIRS:
        return Estimate.undefined_because(f"a decision needs {MIN_PAIRS} pairs, there are {number}")
    if pair.spread is None:
        return Estimate.undefined_because(pair.undefined or "there is no spread", num_units=number)
    level, smallest = LEVEL / num_tests, 2 / 2**number
    if smallest > level:
        return Estimate.undefined_because(
            f"sign flips of {number} pairs give no p-value below {smallest:.2g}, and the first of {num_tests} tests "
            f"needs {level:.2g}",
            num_units=number,
        )
    return Estimate.exact(pair.spread * paired.least_detectable_mean(number, level, POWER), num_units=number)


def _measure_gradients(
    runs: Sequence[compared_runs.ComparedRun], *, progress: ProgressCallback
) -> dict[Path, dict[str, float]]:
    points: dict[Path, list[tuple[int, str, float]]] = {}  # step, metric, value
    for done, run in enumerate(runs):
        report_progress = part(progress, done, len(runs), f"gradients of runs, now {run.path.name}")
        sizes = () if run.group_size is None else (run.group_size,)
        report = measure_rank(
            run.path, advantages=(LOGGED,), options=RankOptions(group_sizes=sizes), progress=report_progress
        )
        points[run.path] = [
            (row.step, name, value)
            for name, rows in (("effective_rank", report.curve), ("signal_to_noise", report.formulations))
            for row in rows
            if row.advantage == LOGGED and (value := getattr(row, name).value) is not None
        ]
    common = set.intersection(*({step for step, _, _ in run_points} for run_points in points.values()))
    if not common:
        raise InputError(
            "The runs have no step in common whose gradients can be recomputed.",
            hint="Train them with one --checkpoint-every, or leave out --gradients.",
        )
    means: dict[Path, dict[str, float]] = {}
    for path, run_points in points.items():
        by_metric: dict[str, list[float]] = {}
        for step, name, value in run_points:
            if step in common:
                by_metric.setdefault(name, []).append(value)
        means[path] = {name: float(np.mean(values)) for name, values in by_metric.items()}
    return means


_WINDOWS = 20  # points of a learning curve: single steps are too noisy to read
_ONE_PAIR = "one pair does not tell how much pairs differ by chance"
_REWARD_METRICS = ("train_reward", "reward_trend", "reward_drawdown", "mean_frac_reward_zero_std")
_NO_SPREAD = "all pairs differ by the same amount, which leaves no spread to judge it by"

_Setting = str | int | float | bool | None  # a plain value of a manifest
_Cell = tuple[str, tuple[tuple[str, _Setting], ...]]  # the formulation and the settings that vary, by name


def compare_runs(
    *paths: str | Path,
    ks: Sequence[int] = (),
    only: str | None = None,
    gradients: bool = False,
    strict: bool = False,
    read: ReadOptions | None = None,
    progress: Progress = False,
) -> Comparison:
    """Compare finished runs.

    Args:
        *paths: Runs of any reader, or folders that hold them.
        ks: Budgets of held-out pass@k; none: 1 and the most that every prompt has samples for.
        only: Compare in pairs only cells that differ in this, ``advantage`` or a setting; None: in any one thing.
        gradients: Whether to recompute gradients at the steps whose weights all runs saved.
        strict: Whether a run that cannot be compared is an error.
        read: How to read logs; a reader that is named reads every run.

    Raises:
        InputError: There are no two finished runs, two runs of ours have the same settings and seed, no two cells
            differ in what was asked for, or under ``strict`` a run cannot be compared.
    """
    progress = reporter(progress)
    paths = tuple(fetched(path, progress) for path in paths)
    runs, left_out = _comparable_runs(paths, read, progress, strict=strict)
    if len(runs) == 2:
        runs = tuple(map(compared_runs.with_side_rewards, runs))
    uncut, (runs, num_common) = runs, compared_runs.on_common_steps(runs)
    cells = _cells(runs)
    chosen = _chosen_pairs(cells, only)
    measured = _measure_gradients(runs, progress=progress) if gradients else {}
    values = _values(cells, runs, _budgets(runs, ks), measured)
    metrics = tuple(dict.fromkeys(name for by_seed in values.values() for run in by_seed.values() for name in run))
    pairs = with_verdicts([pair for first, second in chosen for pair in _compare(first, second, values)])
    if len(runs) == 2 and pairs:
        pairs = compared_runs.with_differences(pairs, *(run for by_seed in cells.values() for run in by_seed.values()))
    if not num_common:  # no test covers training between their steps
        pairs = tuple(
            replace(pair, verdict="open") if pair.within_runs or pair.metric in _REWARD_METRICS else pair
            for pair in pairs
        )
    names = dict(zip((run.path for run in runs), names_of([run.path for run in runs]), strict=True))
    readers = sorted({run.log.format for run in runs if run.log is not None})
    ours = ["gradscope"] if any(run.log is None for run in runs) else []
    kind = f"runs ({', '.join([*ours, *readers])})" if readers else "finished runs of gradscope"
    comparison = Comparison(
        source=Source(
            path=as_named(", ".join(map(str, paths))),
            format="gradscope",
            recognized=f"{len(runs)} {kind}",
            kind="metrics" if all(run.log is not None and run.log.kind == "metrics" for run in runs) else "rollouts",
            files=tuple(file for run in runs for file in run.files),
            num_rows=sum(len(run.reward) if run.log is None else run.log.num_rows for run in runs),
        ),
        cells=tuple(
            _cell(cell, values[cell], metrics, [names[by_seed[seed].path] for seed in sorted(by_seed)])
            for cell, by_seed in cells.items()
        ),
        pairs=pairs,
        curves=tuple(curve for cell, by_seed in cells.items() for curve in _curves(cell, list(by_seed.values()))),
        metrics=metrics,
        num_tests=sum(pair.p_value is not None for pair in pairs),
        rewards=tuple(replace(run.sides, run=names[run.path]) for run in runs if run.sides is not None),
        left_out=left_out,
        num_common_steps=num_common,
        has_seeds_in_names=any(run.has_seed_in_name for run in runs),
        cautions=tuple(_step_caution(uncut, names, num_common)),
    )
    if len(runs) == 2:
        tables = [run.rewards for run in runs if run.rewards is not None]
        prompts = list(map(set, prompt_names(tables))) if len(tables) == 2 else None
        comparison = replace(
            comparison,
            num_shared_prompts=None if prompts is None else len(set.intersection(*prompts)),
            cautions=(*comparison.cautions, *_cautions(*runs, num_common, prompts)),
            parting=_parting(*runs, names),
            levels_left=tuple(_levels_left(*runs, names)),
        )
    return replace(comparison, findings=compare_findings(comparison))


def _parting(first: compared_runs.ComparedRun, second: compared_runs.ComparedRun, names: Mapping[Path, str]) -> str:
    rewards = [dict(zip(run.steps.tolist(), run.reward.tolist(), strict=False)) for run in (first, second)]
    moved = None if compared_runs.unlike_rewards(first, second) else parting(*rewards)
    return "" if moved is None else parting_sentence(names[first.path], names[second.path], moved)


def _levels_left(
    first: compared_runs.ComparedRun, second: compared_runs.ComparedRun, names: Mapping[Path, str]
) -> Iterator[str]:
    """Metrics that left their level in one run, the second before the first, and not that way in the other."""

    def move(sentence: str) -> str:
        return without_numbers(sentence.partition(" from ")[0])

    for run, other in ((second, first), (first, second)):
        moves = set(map(move, other.levels_left))
        yield from (f"{names[run.path]}: {text}" for text in run.levels_left if move(text) not in moves)


def _comparable_runs(
    paths: Sequence[str | Path], read: ReadOptions | None, progress: ProgressCallback, *, strict: bool
) -> tuple[tuple[compared_runs.ComparedRun, ...], dict[str, str]]:
    """The runs below some paths, two or more, and why others are left out."""
    folders = compared_runs.find_runs(paths)
    if len(folders) == 1 < len(paths):
        raise InputError(f"All {len(paths)} paths name one run, {folders[0]}.", hint="Name another run, too.")
    runs, left_out = compared_runs.read_runs(folders, read, progress)
    reasons = {folder: error.message.rstrip(".") for folder, error in left_out.items()}
    listed = "; ".join(f"{folder}: {reason}" for folder, reason in reasons.items())
    if strict and left_out:
        raise InputError(f"{len(left_out)} runs cannot be compared ({listed}).", hint="Leave out --strict.")
    if len(runs) < 2:
        why = next((error.hint for error in left_out.values()), None)
        why = shlex.join(["gradscope", "passk", *map(str, paths)]) if why == compared_runs.SAMPLES_HINT else why
        raise InputError(
            f"A comparison needs two finished runs, and there are {len(runs)} ({listed or 'no other folder'}).",
            hint=why or "Name two runs, or train some: gradscope train --advantage grpo,sign --seeds 0-4 --output grid",
        )
    return runs, reasons


def _values(
    cells: Mapping[_Cell, Mapping[int, compared_runs.ComparedRun]],
    runs: Sequence[compared_runs.ComparedRun],
    budgets: Sequence[int],
    measured: Mapping[Path, dict[str, float]],
) -> dict[_Cell, dict[int, dict[str, float]]]:
    """The metrics of each cell's seeds that bear on these runs, with those of gradients."""
    in_tokens = all(run.rewards is None or run.rewards.tokens is not None for run in runs)
    is_chosen = {
        # one more test would weaken those of many runs; of two it tells a rise from a fall of the same mean
        "reward_trend": len(runs) == 2,
        **dict.fromkeys(compared_runs.LOGGED, len(runs) == 2),
        **{
            f"completion_{unit}{trend}": len(runs) == 2 and in_tokens == (unit == "tokens")
            for unit in ("tokens", "characters")
            for trend in ("", "_trend")
        },
        # where the reward is the probability of the answer, whatever led there
        "frac_incoherent": any(run.settings.get("reward") == "answer_probability" for run in runs),
        # where runs cost differently by design and all state their cost; else only completion lengths differ
        "kilotokens_per_step": any(run.settings.get("sampling", "fixed") != "fixed" for run in runs)
        and all(run.kilotokens is not None for run in runs),
    }
    return {
        cell: {
            seed: {name: value for name, value in run.values(budgets).items() if is_chosen.get(name, True)}
            | measured.get(run.path, {})
            for seed, run in by_seed.items()
        }
        for cell, by_seed in cells.items()
    }


def _cells(runs: Sequence[compared_runs.ComparedRun]) -> dict[_Cell, dict[int, compared_runs.ComparedRun]]:
    """Runs by cell and seed; a setting that only some runs state is unknown of the rest, and separates no cells."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    varying = [name for name in names if len({repr(run.settings[name]) for run in runs if name in run.settings}) > 1]
    cells: dict[_Cell, dict[int, compared_runs.ComparedRun]] = {}
    for run in runs:
        cell = (run.advantage, tuple((name, run.settings.get(name)) for name in varying))
        other = cells.setdefault(cell, {}).setdefault(run.seed, run)
        if other is not run:
            raise InputError(
                f"{other.path} and {run.path} have the same settings and seed: they are one run made twice.",
                hint="Leave one of them out.",
            )
    if len(cells) == 2:
        return cells  # as they were named: the second minus the first
    return dict(sorted(cells.items(), key=lambda item: [item[0][0], *(str(value) for _, value in item[0][1])]))


def _step_caution(runs: Sequence[compared_runs.ComparedRun], names: Mapping[Path, str], common: int) -> Iterator[str]:
    """The steps at which runs are compared, where these are not all of theirs; and that there are none."""
    labels = [names[run.path] for run in runs]
    steps, num_having = np.unique(np.concatenate([run.steps for run in runs]), return_counts=True)
    num_without = [int(np.sum(num_having - np.isin(steps, run.steps) == len(runs) - 1)) for run in runs]
    largest = max(num_without)
    subject, have = f"The {len(runs)} runs", "all runs have"
    note = f"without {labels[num_without.index(largest)]} {largest:,}" if largest > common else ""
    if len(runs) == 2:
        subject, note = " and ".join(labels), " and ".join(f"{run.steps[0]} to {run.steps[-1]}" for run in runs)
        have = f"both have, of {len(runs[0].steps):,} and {len(runs[1].steps):,}"
    if not common:
        yield (
            f"{subject} have no step in common{f' ({note})' * bool(note)}, and what training did in between may be the "
            "difference: nothing of their steps is judged."
        )
    elif common < len(steps):
        yield f"Compared at the {common:,} steps that {have}{f' ({note})' * bool(note and len(runs) > 2)}."


def _cautions(
    first: compared_runs.ComparedRun,
    second: compared_runs.ComparedRun,
    num_common: int,
    prompts: Sequence[set[str]] | None,
) -> Iterator[str]:
    """Differences between two runs other than the one that is compared."""
    # of two checkpoints of a run, say
    if num_common and len(set(first.reward)) > 2 and np.array_equal(first.reward, second.reward):
        yield f"Both have the same mean reward at each of {num_common:,} steps, as logs of one run do."
    if prompts is not None:
        if unlike := compared_runs.unlike_rewards(first, second):
            yield unlike
        yield shared_prompts(len(set.intersection(*prompts)), len(set.union(*prompts)), "both")
    sizes = first.group_size, second.group_size
    if None not in sizes and sizes[0] != sizes[1]:
        yield f"Groups of {sizes[0]} and of {sizes[1]} rollouts: the smaller ones are dead more often by chance alone."
    unshared = sorted(first.settings.keys() ^ second.settings.keys())
    if unshared:
        rest = f" and {len(unshared) - 3} more" if len(unshared) > 3 else ""
        yield f"Unknown whether they differ in what one of them does not state: {', '.join(unshared[:3])}{rest}."


def _budgets(runs: Sequence[compared_runs.ComparedRun], ks: Sequence[int]) -> tuple[int, ...]:
    if any(run.heldout is None for run in runs):
        return ()
    limit = min(int(run.heldout.num_samples.min()) for run in runs if run.heldout is not None)
    large = [k for k in ks if not 1 <= k <= limit]
    if large:
        raise InputError(f"pass@{large[0]} needs more than the {limit} samples of a prompt.", hint=f"--k 1 --k {limit}")
    return tuple(dict.fromkeys(ks or (1, limit)))


def _cell_name(cell: _Cell) -> str:
    advantage, settings = cell
    words = [f"{name} {value}" if name != "run" else str(value) for name, value in settings if value is not None]
    return ", ".join([advantage, *words] if advantage != UNKNOWN else words) or UNKNOWN


def _chosen_pairs(cells: Collection[_Cell], only: str | None) -> list[tuple[_Cell, _Cell]]:
    """Pairs that differ in one thing, the formulation first, or in the named thing; of two cells, whatever differs."""
    pairs = [pair for pair in combinations(cells, 2) if len(cells) == 2 or len(_changed(*pair)) == 1]
    pairs.sort(key=lambda pair: _changed(*pair) != ["advantage"])
    varied = list(dict.fromkeys(_changed(*pair)[0] for pair in pairs if len(_changed(*pair)) == 1))
    if only is not None and only not in varied:
        alternatives = f"They differ in {', '.join(varied)}" if varied else "No two differ in one thing"
        raise InputError(f"No two cells differ in {only!r} alone.", hint=f"{alternatives}; leave out --vary.")
    return [pair for pair in pairs if only is None or _changed(*pair) == [only]]


def _changed(first: _Cell, second: _Cell) -> list[str]:
    """The settings that both cells state and that differ; ``run`` where none does."""
    stated: dict[str, tuple[_Setting, _Setting]]
    stated = {"advantage": (first[0], second[0])} if UNKNOWN not in (first[0], second[0]) else {}
    stated |= {name: (before, after) for (name, before), (_, after) in zip(first[1], second[1], strict=True)}
    changed = [name for name, values in stated.items() if None not in values and values[0] != values[1]]
    return [name for name in changed if name != "run" or changed == ["run"]] or ["run"]


def _compare(first: _Cell, second: _Cell, values: dict[_Cell, dict[int, dict[str, float]]]) -> Iterator[ComparedPair]:
    seeds = sorted(values[first].keys() & values[second].keys())
    runs = [run for cell in (first, second) for run in values[cell].values()]
    unlike = _REWARD_METRICS if _changed(first, second) == ["reward"] else ()
    for metric in [name for name in runs[0] if name not in unlike and all(name in run for run in runs)]:
        differences = np.array([values[second][seed][metric] - values[first][seed][metric] for seed in seeds])
        p_value = paired.paired_t_p_value(differences)
        low, high = _range_of(metric, [*values[first].values(), *values[second].values()])
        why = "the two have no seed in common" if not seeds else _ONE_PAIR if len(seeds) == 1 else _NO_SPREAD
        yield ComparedPair(
            first=_cell_name(first),
            second=_cell_name(second),
            changed=", ".join(_changed(first, second)),
            metric=metric,
            # Student's interval, cut at the greatest difference there can be, so that it agrees with Student's test
            difference=paired.student_mean(differences).within(low - high, high - low)
            if seeds
            else Estimate.undefined_because(why),
            p_value=p_value,
            p_holm=None,
            sign_flip_p_value=paired.sign_flip_p_value(differences),
            num_pairs=len(seeds),
            test="paired t",
            undefined=why if p_value is None else None,
            spread=None if p_value is None else float(differences.std(ddof=1)),
        )


def _range_of(metric: str, runs: Iterable[Mapping[str, float]]) -> tuple[float, float]:
    """The range of a metric; where a task rewards beyond 0 and 1, that of its rewards has no such end."""
    low, high = range_of(metric)
    values = [run[metric] for run in runs if metric in run]
    return low if min(values) >= low else -math.inf, high if max(values) <= high else math.inf


def _cell(cell: _Cell, by_seed: dict[int, dict[str, float]], names: Sequence[str], runs: Sequence[str]) -> ComparedCell:
    values = {name: [run[name] for run in by_seed.values() if name in run] for name in names}
    return ComparedCell(
        name=_cell_name(cell),
        advantage=cell[0],
        settings=dict(cell[1]),
        seeds=tuple(sorted(by_seed)),
        runs=tuple(runs),
        metrics={
            name: paired.student_mean(numbers, bounds=_range_of(name, by_seed.values()))
            if len(numbers) == len(by_seed)
            else Estimate.undefined_because("not every run of the cell has it")
            for name, numbers in values.items()
        },
    )


def _curves(cell: _Cell, runs: Sequence[compared_runs.ComparedRun]) -> Iterator[ComparedCurve]:
    for metric, series in (
        ("reward", [run.reward for run in runs]),
        ("frac_reward_zero_std", [run.degenerate for run in runs]),
    ):
        length = min(map(len, series))
        if not length:
            continue
        windows = np.array_split(np.arange(length), min(_WINDOWS, length))
        table = np.array([[values[window].mean() for window in windows] for values in series])
        yield ComparedCurve(
            cell=_cell_name(cell),
            metric=metric,
            steps=tuple(float(runs[0].steps[window].mean()) for window in windows),
            mean=tuple(table.mean(axis=0).tolist()),
            low=tuple(table.min(axis=0).tolist()),
            high=tuple(table.max(axis=0).tolist()),
        )
