"""What the studies share: a plan that is fixed before its runs exist, runs in pairs, exact tests, tables for a page.

A study asks one question. Its arms differ in one thing, and the runs of a seed share weights, prompts, order and
sampler seed, so that arms are compared in pairs. What it decides are its claims, each one test, all of them one family
under Holm's correction; everything else is shown with its interval and decides nothing. Learning rates, and the spread
from which the plan's power is computed, come from a pilot on other seeds. Nothing is tested before all runs are in.

Shapes: n seeds.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.compare.runs import ComparedRun, read_runs
from gradscope.diagnostics.compare.runs import drawdown as reward_drawdown
from gradscope.diagnostics.passk.samples import read_samples
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.paired import (
    equivalence_p_value,
    holm,
    least_detectable_mean,
    least_detectable_share,
    least_margin,
    sign_flip_p_value,
    student_mean,
)
from gradscope.rollouts.run_folder import heldout_path
from gradscope.training.config import TrainConfig

Settings = Mapping[str, Any]
"""Fields of a configuration that differ from the study's base."""
Cell = tuple[str, str, int]
"""An arm, a learning rate and a seed: one run."""
Number = Callable[[ComparedRun], float | None]
"""A number of a run; None where it has none."""
LEVEL = 0.05
"""A corrected p-value up to this decides."""
POWER = 0.8
"""How often the least detectable effect would be decided."""
RATES = {"3e-5": 3e-5, "1e-4": 1e-4, "3e-4": 3e-4, "1e-3": 1e-3}
"""Learning rates among which a pilot chooses."""
PASS_AT_1 = "pass@1"
"""What the pilot chooses by."""
_QUICK: Settings = {"steps": 2, "checkpoint_every": 2, "num_prompts": 4, "heldout_prompts": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One test that was planned: an arm against another, by one number of each run."""

    arm: str
    """What is changed."""
    baseline: str
    """Against what."""
    metric: str
    """By which number."""
    reported: str
    """What is said of it elsewhere."""
    margin: float | None = None
    """Where the claim is that nothing changes: differences up to this are none. None: the test is for a difference."""
    is_share: bool = False
    """Whether the number is yes or no, of each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The design of a study."""

    name: str
    """The script's name, which its page's markers bear."""
    base: Settings
    """What all runs share."""
    arms: Mapping[str, Settings]
    """Name -> settings of an arm."""
    against: Mapping[str, str]
    """Arm -> the arm that it is compared with."""
    claims: tuple[Claim, ...]
    """What is decided, one family of tests."""
    metrics: Mapping[str, Number]
    """Title -> number of a run."""
    rate_of: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Arm -> the arm whose best learning rate in the pilot it takes, often itself."""
    planned_rates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Arm -> its learning rate, of arms for which the pilot chooses none."""
    pilot_metrics: Mapping[str, Number] = dataclasses.field(default_factory=dict)
    """Title -> what the pilot shows of each arm beside the number that it chooses by."""
    drawn: Sequence[str] = ()
    """Metrics of the figure of differences."""
    drawn_over_steps: Sequence[str] = ()
    """Arms of the figure over the steps, where there is one."""
    seeds: Sequence[int] = range(100, 120)
    """Seeds of the study."""
    pilot_seeds: Sequence[int] = range(4)
    """Seeds of the pilot, which are no others' than its own."""

    @property
    def quick(self) -> Study:
        """The smoke test: the arms of the claims, one seed of the pilot and two of the study, two steps."""
        named = {name for claim in self.claims for name in (claim.arm, claim.baseline)}
        return dataclasses.replace(
            self,
            base={**self.base, **_QUICK},
            arms={arm: settings for arm, settings in self.arms.items() if arm in named},
            against={arm: other for arm, other in self.against.items() if {arm, other} <= named},
            seeds=(100, 101),
            pilot_seeds=(0,),
        )

    def cell(self, output: Path, arm: str, rate: str, seed: int) -> TrainConfig:
        """The configuration of one run."""
        folder = output / f"{arm} {rate}".replace(" ", "-").replace(",", "") / f"seed{seed}"
        settings = {**self.base, **self.arms[arm], "learning_rate": RATES[rate], "seed": seed, "output": str(folder)}
        return TrainConfig.from_json({**settings, "device": "cpu"})

    def cells(self, rates: Mapping[str, str]) -> tuple[Cell, ...]:
        """Every run of the study, seed by seed."""
        return tuple((arm, rates[arm], seed) for seed in self.seeds for arm in self.arms)

    @property
    def choosing_cells(self) -> tuple[Cell, ...]:
        """The runs of the pilot that choose learning rates."""
        arms = [arm for arm in self.arms if arm in self.rate_of.values()]
        return tuple((arm, rate, seed) for seed in self.pilot_seeds for arm in arms for rate in RATES)

    def spread_cells(self, rates: Mapping[str, str]) -> tuple[Cell, ...]:
        """The runs of the pilot that tell the spread of what is tested."""
        arms = dict.fromkeys(name for claim in self.claims for name in (claim.arm, claim.baseline))
        return tuple((arm, rates[arm], seed) for seed in self.pilot_seeds for arm in arms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim and what its test says."""

    claim: Claim
    """The claim."""
    estimate: Estimate
    """Mean over seeds of arm minus baseline, with Student's 95 % interval."""
    p_value: float | None
    """Of sign flips, or of the two one-sided tests of an equivalence."""
    p_holm: float | None
    """Corrected for all claims of the study."""
    least: float | None
    """The least effect that is decided four times in five, or the least margin within which equal arms are shown
    equivalent four times in five, at the spread seen; None where no effect of these seeds could be."""

    @property
    def verdict(self) -> str:
        """What the test decides, in a word or two."""
        if self.p_holm is None or self.p_holm > LEVEL:
            return "not decided"
        if self.claim.margin is not None:
            return f"within {self.claim.margin:g} of it"
        return "higher" if (self.estimate.value or 0.0) > 0 else "lower"


@dataclass(frozen=True)
class Runs:
    """The finished runs of a study, or of its pilot."""

    study: Study
    """The design."""
    by_cell: Mapping[Cell, ComparedRun]
    """The runs."""
    planned: Sequence[Cell]
    """Those that the plan asks for."""
    rates: Mapping[str, str]
    """Arm -> its learning rate; of a pilot that is not finished none."""
    known: dict[str, dict[Cell, float]] = dataclasses.field(default_factory=dict)
    """Metric -> the numbers of the runs, where they are computed or read from a file already."""

    @classmethod
    def from_seeds(cls, study: Study, file: Path) -> Runs:
        """The numbers of a file that :meth:`by_seed` made, without the runs."""
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        known = {
            metric: {
                (row["arm"], row["learning rate"], int(row["seed"])): float(row[metric]) for row in rows if row[metric]
            }
            for metric in study.metrics
        }
        return cls(study, {}, (), {row["arm"]: row["learning rate"] for row in rows}, known)

    def by_seed(self) -> str:
        """A row an arm and seed, as CSV: what every number of the page can be computed from."""
        stream = io.StringIO(newline="")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["arm", "learning rate", "seed", *self.study.metrics])
        for arm, rate in self.rates.items():
            numbers = [self.values(arm, metric) for metric in self.study.metrics]
            seeds = sorted({seed for of_metric in numbers for seed in of_metric})
            writer.writerows([arm, rate, seed, *(of_metric.get(seed, "") for of_metric in numbers)] for seed in seeds)
        return stream.getvalue()

    @classmethod
    def read(cls, study: Study, folder: Path, planned: Sequence[Cell], rates: Mapping[str, str]) -> Runs:
        """The runs that are there, and finished."""
        found: dict[Cell, ComparedRun] = {}
        for cell in planned:
            output = Path(study.cell(folder, *cell).output)
            if output.is_dir() and (runs := read_runs([output])[0]):
                found[cell] = runs[0]
        return cls(study, found, planned, rates)

    @property
    def num_missing(self) -> int:
        """Runs that are not finished."""
        return len(self.planned) - len(self.by_cell)

    def best_rates(self) -> dict[str, str]:
        """The rule: of each arm the rate with the highest mean pass@1 over the pilot's seeds; of equal ones the lower.

        Returns:
            Arm -> rate.
        """
        chooses = {arm: other for arm, other in self.study.rate_of.items() if arm in self.study.arms}
        best = {arm: max(RATES, key=lambda rate: self._mean_pass(arm, rate)) for arm in chooses.values()}
        planned = {arm: rate for arm, rate in self.study.planned_rates.items() if arm in self.study.arms}
        return {arm: best[other] for arm, other in chooses.items()} | planned

    def _mean_pass(self, arm: str, rate: str) -> float:
        return float(np.mean([*self.values(arm, PASS_AT_1, rate).values()]))

    def values(self, arm: str, metric: str, rate: str | None = None) -> dict[int, float]:
        """Seed -> a number of an arm's runs, at its own rate unless another is named."""
        wanted, numbers = rate or self.rates.get(arm), self._numbers(metric)
        return {seed: number for (own, at, seed), number in numbers.items() if (own, at) == (arm, wanted)}

    def changes(self, arm: str, baseline: str, metric: str) -> NDArray[np.float64]:
        """Arm minus baseline of each seed that both have; [n]."""
        one, other = self.values(arm, metric), self.values(baseline, metric)
        return np.array([one[seed] - other[seed] for seed in one if seed in other])

    def runs(self, arm: str) -> list[ComparedRun]:
        """The runs of an arm at its own rate, seed by seed."""
        return [run for (own, _, _), run in self.by_cell.items() if own == arm]

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """Every claim."""
        changes = [self.changes(claim.arm, claim.baseline, claim.metric) for claim in self.study.claims]
        p_values = [_p_value(claim, change) for claim, change in zip(self.study.claims, changes, strict=True)]
        rows = zip(self.study.claims, changes, p_values, holm(p_values), strict=True)
        return tuple(
            Judged(
                claim=claim,
                estimate=student_mean(change),
                p_value=p,
                p_holm=corrected,
                least=least_effect(claim, change, len(change), len(changes)),
            )
            for claim, change, p, corrected in rows
        )

    def _numbers(self, metric: str) -> dict[Cell, float]:
        if metric not in self.known:
            number = {**self.study.pilot_metrics, **self.study.metrics}[metric]
            of = ((key, number(run)) for key, run in self.by_cell.items())
            self.known[metric] = {key: value for key, value in of if value is not None}
        return self.known[metric]


def _p_value(claim: Claim, change: NDArray[np.float64]) -> float | None:
    return sign_flip_p_value(change) if claim.margin is None else equivalence_p_value(change, claim.margin)


def least_effect(claim: Claim, change: NDArray[np.float64], num_pairs: int, num_tests: int) -> float | None:
    """What a number of pairs decides four times in five as the smallest of so many p-values, at a spread.

    Args:
        change: Differences that the spread is taken from, [n].
        num_pairs: Pairs that are tested.
        num_tests: Claims of the family.

    Returns:
        A difference, a share, or for an equivalence the least margin; None where no pairs tell the spread, or so few
        are tested that none decides.
    """
    level, fewest = LEVEL / num_tests, 2 if claim.margin is None else 1
    if claim.is_share:
        return least_detectable_share(num_pairs, level, POWER)
    if len(change) < 2 or level < fewest / 2**num_pairs:
        return None
    least = least_detectable_mean if claim.margin is None else least_margin
    return float(change.std(ddof=1)) * least(num_pairs, level, POWER)


def fill_page(page: Path, begin: str, end: str, text: str) -> None:
    """Puts the tables of a study between two lines of its page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def held_out(k: int) -> Number:
    """Pass@k on the held-out prompts after training."""
    return lambda run: run.values((k,)).get(f"pass@{k}")


def held_out_before(run: ComparedRun) -> float:
    """Pass@1 on the held-out prompts before training."""
    samples = read_samples(heldout_path(run.path, "before"))
    return float((samples.num_correct / samples.num_samples).mean())


def dead_groups(run: ComparedRun) -> float:
    """Mean share of degenerate groups."""
    return float(run.degenerate.mean())


def drawdown(run: ComparedRun) -> float:
    """Largest fall of the train reward."""
    return reward_drawdown(run.reward)
