"""What the studies share: runs that differ in one thing, paired differences from a baseline, tables for a page.

A study is a grid of blocks (a task, a group size), arms (what is compared; the first is the baseline), conditions (a
learning rate, a control) and seeds. Runs of a block, condition and seed share weights, prompts, order and sampler seed,
so an arm and the baseline are compared in pairs. All tests of a study are one family under Holm's correction.

Shapes: n seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.compare.runs import ComparedRun, read_runs
from gradscope.diagnostics.compare.runs import drawdown as reward_drawdown
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.paired import holm, paired_t_p_value, student_mean
from gradscope.training.grid import train_grid
from gradscope.training.setup.config import TrainConfig

Settings = Mapping[str, Any]
"""Fields of a configuration that differ from the study's base."""
Place = tuple[str, str]
"""A block and a condition."""
LEVEL = 0.05
"""A corrected p-value below this decides."""
_QUICK: Settings = {"steps": 4, "checkpoint_every": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The design of a study."""

    name: str
    """The script's name, which its page's markers bear."""
    base: Settings
    """What all runs share."""
    blocks: Mapping[str, Settings]
    """Name -> settings of a block."""
    arms: Mapping[str, Settings]
    """Name -> settings of an arm; the first is the baseline."""
    conditions: Mapping[str, Settings]
    """Name -> settings of a condition."""
    metrics: Mapping[str, Callable[[ComparedRun], float | None]]
    """Title -> number of a run; None where a run has none."""
    seeds: Sequence[int] = range(5)
    """Seeds."""
    only: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Arm -> the blocks that it is part of; an arm that is not named is part of all."""

    @property
    def quick(self) -> Study:
        """The smoke test: the first block, the first condition, two seeds, a few steps."""
        (block, where), *_ = self.blocks.items()
        (condition, settings), *_ = self.conditions.items()
        return dataclasses.replace(
            self,
            base={**self.base, **_QUICK},
            blocks={block: {**where, "heldout_prompts": 8}},
            conditions={condition: settings},
            seeds=(0, 1),
        )

    @property
    def places(self) -> tuple[Place, ...]:
        """Blocks and conditions."""
        return tuple((block, condition) for block in self.blocks for condition in self.conditions)

    def arms_of(self, block: str) -> tuple[str, ...]:
        """The arms of a block, the baseline first."""
        return tuple(arm for arm in self.arms if block in self.only.get(arm, (block,)))

    def cell(self, output: Path, place: Place, arm: str, seed: int) -> TrainConfig:
        """The configuration of one run."""
        block, condition = place
        folder = output / _file_name(block) / _file_name(f"{arm} {condition} seed{seed}")
        settings = {**self.base, **self.blocks[block], **self.arms[arm], **self.conditions[condition]}
        return TrainConfig.from_json({**settings, "seed": seed, "output": str(folder), "device": "cpu"})

    def cells(self, output: Path) -> tuple[TrainConfig, ...]:
        """Every run."""
        return tuple(
            self.cell(output, place, arm, seed)
            for place in self.places
            for seed in self.seeds
            for arm in self.arms_of(place[0])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An arm against the baseline on one metric."""

    place: Place
    """Where."""
    arm: str
    """Which arm."""
    metric: str
    """Of what."""
    estimate: Estimate
    """Mean over seeds of arm minus baseline."""
    p_holm: float | None
    """Of the paired t test, corrected for all tests of the study."""

    @property
    def decided(self) -> bool:
        """Whether the corrected test decides."""
        return self.p_holm is not None and self.p_holm < LEVEL


class Results:
    """The finished runs of a study.

    Args:
        study: The design.
        output: Where its runs are.
    """

    def __init__(self, study: Study, output: Path) -> None:
        self.study = study
        self._runs: dict[tuple[Place, str, int], ComparedRun] = {}
        for place in study.places:
            for arm in study.arms_of(place[0]):
                for seed in study.seeds:
                    (run,), _ = read_runs([Path(study.cell(output, place, arm, seed).output)])
                    self._runs[place, arm, seed] = run
        self.differences = self._differences()

    def runs(self, place: Place, arm: str) -> list[ComparedRun]:
        """The runs of an arm, seed by seed."""
        return [self._runs[place, arm, seed] for seed in self.study.seeds]

    def mean(self, place: Place, arm: str, metric: str) -> Estimate:
        """A metric's mean over seeds."""
        values = [self.study.metrics[metric](run) for run in self.runs(place, arm)]
        return student_mean([value for value in values if value is not None])

    def difference(self, place: Place, arm: str, metric: str) -> Difference:
        """An arm against the baseline."""
        return next(d for d in self.differences if (d.place, d.arm, d.metric) == (place, arm, metric))

    def _differences(self) -> tuple[Difference, ...]:
        baseline, *_ = self.study.arms
        return correct(
            {
                (place, arm, metric): self.changes(place, arm, metric)
                for place in self.study.places
                for arm in self.study.arms_of(place[0])
                for metric in self.study.metrics
                if arm != baseline
            }
        )

    def changes(self, place: Place, arm: str, metric: str) -> NDArray[np.float64]:
        """Arm minus baseline of each seed, as far as both runs have the metric; [n]."""
        baseline, *_ = self.study.arms
        of = self.study.metrics[metric]
        pairs = zip(self.runs(place, arm), self.runs(place, baseline), strict=True)
        changes = [(of(run), of(other)) for run, other in pairs]
        return np.array([one - other for one, other in changes if one is not None and other is not None])


def correct(changes: Mapping[tuple[Place, str, str], NDArray[np.float64]]) -> tuple[Difference, ...]:
    """Differences as one family of tests.

    Args:
        changes: Place, arm and metric -> arm minus baseline of each seed, [n].

    Returns:
        The differences, in order.
    """
    p_values = holm([paired_t_p_value(change) if len(change) else None for change in changes.values()])
    return tuple(
        Difference(place=place, arm=arm, metric=metric, estimate=student_mean(change), p_holm=p)
        for ((place, arm, metric), change), p in zip(changes.items(), p_values, strict=True)
    )


def _file_name(text: str) -> str:
    return text.replace("=", "").replace(" ", "-")


def held_out(k: int) -> Callable[[ComparedRun], float | None]:
    """Pass@k on the held-out prompts after training."""
    return lambda run: run.values((k,)).get(f"pass@{k}")


def train_reward(run: ComparedRun) -> float:
    """Mean train reward."""
    return float(run.reward.mean())


def dead_groups(run: ComparedRun) -> float:
    """Mean share of degenerate groups."""
    return float(run.degenerate.mean())


def drawdown(run: ComparedRun) -> float:
    """Largest fall of the train reward."""
    return reward_drawdown(run.reward)


def run_study(
    study: Study,
    render: Callable[[Results], str],
    draw: Callable[[Results, Path], None],
    arguments: Sequence[str] | None,
) -> int:
    """Train what is missing; the first table goes to the page, the others and the figures beside it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True, help="the folder of the runs; what is there goes on")
    parser.add_argument("--quick", action="store_true", help="the smoke test")
    parser.add_argument("--jobs", type=int, help="runs at once")
    parser.add_argument("--page", type=Path, help="the page to put the tables into")
    parser.add_argument("--images", type=Path, help="the folder to put the figures into")
    options = parser.parse_args(arguments)
    begin, end = f"<!-- tables of benchmarks/{study.name}.py -->", "<!-- end of tables -->"
    if options.page is not None and begin not in options.page.read_text(encoding="utf-8"):
        parser.error(f"{options.page} has no line {begin!r}")
    design = study.quick if options.quick else study
    train_grid(
        design.cells(options.output),
        num_processes=options.jobs,
        resume=True,
        on_cell=lambda run: print(f"wrote {run}", flush=True),
    )
    results = Results(design, options.output)
    tables = render(results)
    print(tables)
    if options.images is not None:
        options.images.mkdir(parents=True, exist_ok=True)
        draw(results, options.images)
        for picture in options.images.glob(f"{study.name}_*.png"):  # the page shows the drawings
            picture.unlink()
    if options.page is not None:
        from study_pages import fill_page  # every run's process imports this file

        fill_page(options.page, begin, end, study.name, tables)
    return 0


def table_of_means(results: Results, place_title: str) -> str:
    """Means over seeds with their intervals, a row for each block, condition and arm."""
    metrics = list(results.study.metrics)
    lines = [f"| {place_title} | arm | " + " | ".join(metrics) + " |", "|---|---|" + "--:|" * len(metrics)]
    for place in results.study.places:
        for arm in results.study.arms_of(place[0]):
            cells = [format_mean(results.mean(place, arm, metric)) for metric in metrics]
            lines.append(f"| {', '.join(place)} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_differences(results: Results, place_title: str, differences: Sequence[Difference] | None = None) -> str:
    """Each arm minus the baseline, with 95 % intervals; bold where the corrected test decides."""
    metrics = list(results.study.metrics)
    baseline, *_ = results.study.arms
    rows: dict[tuple[Place, str], list[str]] = {}
    for difference in results.differences if differences is None else differences:
        rows.setdefault((difference.place, difference.arm), []).append(format_difference(difference))
    lines = [
        f"| {place_title} | arm - {baseline} | " + " | ".join(metrics) + " |",
        "|---|---|" + "--:|" * len(metrics),
        *(f"| {', '.join(place)} | {arm} | {' | '.join(cells)} |" for (place, arm), cells in rows.items()),
    ]
    return "\n".join(lines)


def count_tests(results: Results, differences: Sequence[Difference] | None = None) -> str:
    """How many tests there were, and how many decide."""
    made = results.differences if differences is None else differences
    tests = [difference for difference in made if difference.p_holm is not None]
    return (
        f"{len(tests)} paired t tests, {len(results.study.seeds)} seeds each; "
        f"{sum(difference.decided for difference in tests)} decide at 0.05 after Holm's correction for all of them."
    )


def differences_and_means(
    results: Results, *, against: str, place_title: str, between: Sequence[str] = ()
) -> list[str]:
    """The two tables that every page ends with, and what a study has to say between them."""
    return [
        f"### Differences from {against}",
        count_tests(results) + " Decided ones are bold.",
        table_of_differences(results, place_title),
        *between,
        "### Means over seeds, ± half of the 95 % interval",
        table_of_means(results, place_title),
    ]


def format_mean(mean: Estimate) -> str:
    """A mean and half its interval's width."""
    if mean.value is None:
        return "—"
    half = "" if mean.high is None else f" ± {mean.high - mean.value:.3f}"
    return f"{mean.value:.3f}{half}"


def format_difference(difference: Difference) -> str:
    """A difference with its interval, bold where it is decided."""
    estimate = difference.estimate
    if estimate.value is None:
        return "—"
    reach = "" if estimate.low is None else f" [{estimate.low:+.3f}, {estimate.high:+.3f}]"
    text = f"{estimate.value:+.3f}{reach}"
    return f"**{text}**" if difference.decided else text
