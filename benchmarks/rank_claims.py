"""Is the gradient of a group of rank 2? Outcome and per-step rewards of the same rollouts, R = 2, 4, 8, with nulls.

Run `python benchmarks/rank_claims.py RUN [RUN ...]` on runs of `gradscope train` that logged per-token rewards. It
prints the Markdown tables of docs/research/rank_*.csv. Groups of all runs are pooled; intervals resample groups.

Outcome: one advantage a rollout, its reward minus the mean of its R rollouts. Per step: one advantage a token, the
rewards from that token on minus the mean of that over the R rollouts. The score vectors are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradscope import measure_rank
from gradscope.advantages.registry import LOGGED
from gradscope.advantages.token import return_to_go
from gradscope.diagnostics.inputs.steps import measure_steps
from gradscope.diagnostics.rank.formulations import measure_formulations
from gradscope.diagnostics.rank.reward_baselines import BaselineGroup, baseline_groups, measure_baselines
from gradscope.diagnostics.rank.rollout_spectra import step_spectra
from gradscope.diagnostics.rank.rows import StepRows, step_rows
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.geometry import gradient_gram, row_norms
from gradscope.metrics.gram.sparsity import row_sparsity
from gradscope.metrics.uncertainty.bootstrap import bounded_means
from gradscope.progress import no_progress
from gradscope.results.rank import FormulationUpdate, GradientSpectrum, RankCurvePoint
from gradscope.results.tokens import GradientSparsity
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup

SIZES = (2, 4, 8)
FORMULATIONS = ("dr_grpo", "grpo", "sign", "reinforce", "negative_only")
Steps = dict[int, list[StepRows]]


def main(paths: Sequence[str]) -> None:
    """Print every table."""
    runs = [read_run(Path(path)) for path in paths]
    outcome = rows_of(runs)
    print(f"{len(runs)} runs, {sum(len(rows) for rows in outcome.values())} steps, checkpoints before steps", end=" ")
    print(", ".join(str(step) for step in sorted(outcome)), end="\n\n")
    print_ranks("Outcome rewards (dr_grpo)", dict.fromkeys(SIZES, outcome), "dr_grpo")
    per_step = {size: rows_of([with_step_rewards(run, size) for run in runs]) for size in SIZES}
    print_ranks("Per-step rewards (return to go)", per_step, LOGGED)
    print_sparsity(outcome)
    print_sparsity_below(paths)
    print_baselines(outcome)
    print_alignment(outcome)


def rows_of(runs: Sequence[Run]) -> Steps:
    """The Gram matrices of every step of every run whose weights are on disk."""
    found: Steps = {}
    for run in runs:
        steps = [step for step in run.steps if run.weights_before(step)]
        for measured in measure_steps(run, steps, EngineOptions(), no_progress):
            if measured.gram is None:
                raise SystemExit(f"{run.path}, step {measured.step}: {measured.reason}")
            found.setdefault(measured.step, []).append(step_rows(measured.gram))
    return found


def with_step_rewards(run: Run, size: int) -> Run:
    """The run as if every token had been credited with what it and the later ones earned, in groups of `size`."""
    return replace(run, groups=tuple(_credited(group, size) for group in run.groups))


def _credited(group: RolloutGroup, size: int) -> RolloutGroup:
    rollouts = []
    for start in range(0, group.size, size):
        part = group.rollouts[start : start + size]
        rewards = [rollout.token_rewards for rollout in part]
        if any(reward is None for reward in rewards):
            raise SystemExit(f"group {group.group_id} at step {group.step} has no per-token rewards")
        credits = return_to_go([reward or () for reward in rewards])
        rollouts += [
            replace(rollout, advantage=None, token_advantages=tuple(float(value) for value in credit))
            for rollout, credit in zip(part, credits, strict=True)
        ]
    return replace(group, rollouts=tuple(rollouts))


def print_ranks(title: str, by_size: dict[int, Steps], advantage: str) -> None:
    """Effective rank of a live group by R and checkpoint, beside its nulls, and how much two directions hold."""
    print(f"### {title}\n")
    print(
        "| step | R | live | effective rank | scores | shuffled | unrelated rows | ratio | two directions (unrelated) |"
    )
    print("|---:|---:|---:|---|---:|---:|---:|---:|---|")
    for step in sorted(by_size[SIZES[0]]):
        for size in SIZES:
            points, spectra = zip(*(_of_size(rows, advantage, size) for rows in by_size[size][step]), strict=True)
            live = [spectrum for run in spectra for spectrum in run if spectrum.ranks.effective_rank.value is not None]
            names = [f"{place}/{s.label.group_id}" for place, run in enumerate(spectra) for s in run if s in live]
            (ranks,) = bounded_means([[s.ranks.effective_rank.value] for s in live], names, low=1.0, high=size)
            total = sum(point.num_groups for point in points)
            nulls = [pooled(points, name) for name in ("unweighted", "shuffled", "gaussian")]
            unrelated = nulls[-1]
            ratio = "-" if unrelated is None else f"{(ranks.value or 0.0) / unrelated:.2f}"
            cells = [f"{len(live)}/{total}", number(ranks), *map(spelled, nulls), ratio]
            energy = f"{spelled(mean_energy(points))} ({spelled(mean_energy(points, 'gaussian'))})"
            print(f"| {step} | {size} | {' | '.join(cells)} | {energy} |")
    print()


def _of_size(rows: StepRows, advantage: str, size: int) -> tuple[RankCurvePoint, list[GradientSpectrum]]:
    spectra, (point,) = step_spectra(rows, advantage, size, by_group=False)
    return point, spectra[1:]


def pooled(points: Sequence[RankCurvePoint], null: str) -> float | None:
    """A null's mean over the live groups of all runs."""
    return mean_over(points, [point.nulls[null].effective_rank.value if point.nulls else None for point in points])


def mean_energy(points: Sequence[RankCurvePoint], null: str | None = None) -> float | None:
    """The energy of two directions, or a null's, mean over the live groups of all runs."""
    if null is None:
        return mean_over(points, [point.two_direction_energy.value for point in points])
    return mean_over(points, [p.nulls[null].two_direction_energy.value if p.nulls else None for p in points])


def mean_over(points: Sequence[RankCurvePoint], values: Sequence[float | None]) -> float | None:
    """A mean weighed by live groups."""
    live = [(value, p.num_groups - p.num_dead) for value, p in zip(values, points, strict=True) if value is not None]
    return sum(value * count for value, count in live) / sum(count for _, count in live) if live else None


def spelled(value: float | None) -> str:
    """A number of a table."""
    return "-" if value is None else f"{value:.2f}"


def print_sparsity(steps: Steps) -> None:
    """How much of the logged-size gradient is (near) zero under dr_grpo, mean over runs."""
    print("### Sparsity over training (dr_grpo)\n")
    print("| step | dead groups | zero rows | rows below 1 % of the largest | Hoyer | Gini |")
    print("|---:|---:|---:|---:|---:|---:|")
    for step in sorted(steps):
        table = np.array([list(_sparsity(rows)) for rows in steps[step]])
        print(f"| {step} | {' | '.join(f'{value:.3f}' for value in table.mean(axis=0))} |")
    print()


def print_sparsity_below(paths: Sequence[str]) -> None:
    """The same of token rows and of the entries of weights' gradients, as trained, mean over runs and weights."""
    found: dict[tuple[int, str], list[GradientSparsity]] = {}
    for path in paths:
        for kind in ("token", "weight"):
            for one in measure_rank(path, rows=kind, advantages=[LOGGED]).sparsity:
                found.setdefault((one.step, one.parts), []).append(one)
    print("### Sparsity below the rollout (as trained)\n")
    print("| step | of | number | zero | below 1 % of the largest | Hoyer | Gini | most and least even weight |")
    print("|---:|---|---:|---:|---:|---:|---:|---|")
    for (step, parts), ones in sorted(found.items()):
        table = np.array([[e.value or 0.0 for e in (one.zero, one.small, one.hoyer, one.gini)] for one in ones])
        number = sum(one.num_parts for one in ones) // len(paths)
        means = " | ".join(f"{value:.3f}" for value in table.mean(axis=0))
        print(f"| {step} | {parts} | {number:,} | {means} | {_ends_of(ones) if parts == 'entries' else ''} |")
    print()


def _ends_of(ones: Sequence[GradientSparsity]) -> str:
    """The weights with the lowest and the highest mean Gini."""
    by_tensor: dict[str, list[float]] = {}
    for one in ones:
        by_tensor.setdefault(str(one.tensor), []).append(one.gini.value or 0.0)
    means = sorted((float(np.mean(values)), name) for name, values in by_tensor.items())
    short = [(gini, name.removeprefix("model.").removesuffix(".weight")) for gini, name in (means[0], means[-1])]
    return ", ".join(f"{name} {gini:.2f}" for gini, name in short)


def _sparsity(rows: StepRows) -> Iterator[float]:
    ids = np.array(rows.group_ids)
    rewards = [rows.rewards[ids == group] for group in dict.fromkeys(rows.group_ids)]
    yield float(np.mean([np.ptp(reward) == 0 for reward in rewards]))
    advantages = np.concatenate([reward - reward.mean() for reward in rewards])
    sparsity = row_sparsity(row_norms(gradient_gram(rows.gram, _exact_zeros(advantages))))
    for name in ("zero_rows", "small_rows", "hoyer", "gini"):
        yield sparsity[name].value or 0.0


def _exact_zeros(advantages: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(advantages) < 1e-12, 0.0, advantages)


def print_baselines(steps: Steps) -> None:
    """The noise of the gradient under each baseline, relative to leave-one-out."""
    groups: list[BaselineGroup] = []
    for of_step in steps.values():
        for place, rows in enumerate(of_step):
            groups += [replace(group, group_id=f"{place}/{group.group_id}") for group in baseline_groups(rows)]
    whole, *by_step = measure_baselines(groups)
    by_step = [noise for noise in by_step if noise.group_id is None]
    names = list(whole.relative_noise)
    print("### Gradient noise by baseline, relative to leave-one-out\n")
    print(f"| step | mean reward | optimal b | corr(r, \\|s\\|^2) | {' | '.join(names)} |")
    print("|---:|---:|---|---:|" + "---|" * len(names))
    for noise in (*by_step, whole):
        label = "all" if noise.step is None else str(noise.step)
        ratios = [number(noise.relative_noise[name]) for name in names]
        correlation = noise.reward_norm_correlation.value
        optimal = number(noise.optimal_baseline)
        print(f"| {label} | {noise.pass_rate:.2f} | {optimal} | {correlation:.2f} | {' | '.join(ratios)} |")
    print()


def number(estimate: Estimate) -> str:
    """A value with its interval."""
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def print_alignment(steps: Steps) -> None:
    """Cosine of expected updates with the gradient of pass@k, run by run, and signal to noise."""
    print("### Alignment of expected updates with pass@k\n")
    print("| step | run | advantage | signal / noise | pass@1 | pass@8 |")
    print("|---:|---:|---|---|---|---|")
    for step in sorted(steps):
        for place, rows in enumerate(steps[step]):
            for update in measure_formulations(rows, FORMULATIONS):
                print(f"| {step} | {place} | {update.advantage} | {_aligned(update)} |")
    print()


def _aligned(update: FormulationUpdate) -> str:
    return " | ".join(number(value) for value in (update.signal_to_noise, *update.alignment.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
