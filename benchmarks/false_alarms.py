"""How often `gradscope check --baseline` fails a run that is no worse than its baseline, and one that is, simulated.

`python benchmarks/false_alarms.py` prints the table of docs/research/check_baselines_3.csv. Two runs sample prompts of
a Beta(0.5, 0.5) distribution of pass rates; paired runs have the same prompts, the others prompts of their own. In a
worse run every pass rate has moved by a third of its distance to its nearer end, 0 or 1: hard prompts are lost, and
groups die.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.check.baseline import baseline_verdicts
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.verdicts import BaselineMetric, BaselineRule

Array = NDArray[np.float64]

GROUP_SIZE, NUM_SAMPLES, BUDGET = 8, 16, 8
SIZES = (32, 128)
RULES: tuple[BaselineRule, ...] = ("interval", "value")
SHARPENED = 1 / 3


def metrics_of(rates: Array, names: list[str], rng: np.random.Generator) -> Iterator[tuple[str, BaselineMetric]]:
    """Both metrics of one simulated run, with each prompt's own number."""
    passed = rng.binomial(GROUP_SIZE, rates)
    dead = ((passed == 0) | (passed == GROUP_SIZE)).astype(float)
    solved = pass_at_k(np.full(len(rates), NUM_SAMPLES), rng.binomial(NUM_SAMPLES, rates), BUDGET)
    for name, values in (("frac_reward_zero_std", dead), (f"pass@{BUDGET}", solved)):
        estimate: Estimate = bootstrap_mean(values)
        yield name, BaselineMetric(estimate=estimate, prompts=dict(zip(names, values.tolist(), strict=True)))


def failures(size: int, trials: int, *, paired: bool, sharpened: float) -> dict[tuple[str, BaselineRule], float]:
    """Share of trials in which the second run fails, by metric and rule."""
    counts: dict[tuple[str, BaselineRule], int] = {}
    for trial in range(trials):
        rng = np.random.default_rng([size, paired, trial])
        first = rng.beta(0.5, 0.5, size)
        second = first if paired else rng.beta(0.5, 0.5, size)
        second = second + sharpened * (np.round(second) - second)
        names = [str(number) for number in range(size)]
        others = names if paired else [f"other {name}" for name in names]
        before, after = dict(metrics_of(first, names, rng)), dict(metrics_of(second, others, rng))
        for name in before:
            for rule in RULES:
                sides = {name: before[name]}, {name: after[name]}
                (verdict,) = baseline_verdicts(*sides, rule=rule, path="run", resampling=Resampling(seed=trial))
                counts[name, rule] = counts.get((name, rule), 0) + (verdict.outcome == "fail")
    return {key: count / trials for key, count in counts.items()}


def main() -> None:
    """Prints one table for equal runs and one for worse ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    trials = parser.parse_args().trials
    for title, sharpened in (("no worse", 0.0), ("every pass rate a third nearer to its end", SHARPENED)):
        print(f"\nRuns that fail, of {trials}: {title}\n")
        print("| metric | prompts | paired, interval | paired, value | unpaired, interval | unpaired, value |")
        print("|---|---|---|---|---|---|")
        for size in SIZES:
            shares = {paired: failures(size, trials, paired=paired, sharpened=sharpened) for paired in (True, False)}
            for name in ("frac_reward_zero_std", f"pass@{BUDGET}"):
                cells = [f"{shares[paired][name, rule]:.1%}" for paired in (True, False) for rule in RULES]
                print(f"| `{name}` | {size} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
