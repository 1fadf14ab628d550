"""How often the interval of the Jensen gap holds the truth at the logged group size, by groups, size and pass rates.

`python benchmarks/referee/gap_coverage.py` prints docs/research/validation_coverage_of_the_gap.csv; a prompt has one
group. A minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.outcomes.degeneracy import GroupTable, estimate_degeneracies
from gradscope.metrics.outcomes.groups import iid_prediction
from gradscope.metrics.uncertainty.intervals import Resampling

Rates = Callable[[np.random.Generator, int], NDArray[np.float64]]


def one(rate: float) -> Rates:
    """One pass rate for all."""
    return lambda _, count: np.full(count, rate)


def beta(a: float, b: float) -> Rates:
    """Pass rates of a Beta distribution."""
    return lambda rng, count: rng.beta(a, b, count)


def points(*rates: float) -> Rates:
    """As many prompts of each rate."""
    return lambda rng, count: rng.choice(rates, count)


CASES: tuple[tuple[str, Rates, int, int], ...] = (
    *((f"one rate, {rate}", one(rate), 24, 4) for rate in (0.1, 0.3, 0.5)),
    ("one rate, .9", one(0.9), 16, 4),
    ("one rate, .9", one(0.9), 8, 8),
    ("one rate, .95", one(0.95), 32, 8),
    *(("Beta(1, 9)", beta(1, 9), *shape) for shape in ((24, 4), (16, 8), (100, 4), (300, 8))),
    *(("Beta(2, 2)", beta(2, 2), *shape) for shape in ((16, 4), (100, 8), (200, 16))),
    *(("Beta(.3, 6)", beta(0.3, 6), *shape) for shape in ((32, 4), (300, 8))),
    ("Beta(.1, .9)", beta(0.1, 0.9), 24, 4),
    ("Beta(9, 1)", beta(9, 1), 12, 16),
    ("Beta(20, 20)", beta(20, 20), 32, 8),
    ("Beta(8, 2)", beta(8, 2), 40, 16),
    ("points .05, .9", points(0.05, 0.9), 24, 4),
    ("points .02, .3", points(0.02, 0.3), 32, 8),
    ("points .4, .6", points(0.4, 0.6), 64, 8),
)


def tables(rates: Rates, groups: int, size: int, trials: int) -> list[GroupTable]:
    """Simulated logs of one step."""
    rng = np.random.default_rng([groups, size])
    passed = [rng.binomial(size, rates(rng, groups)) for _ in range(trials)]
    return [
        GroupTable(
            step=np.ones(groups, dtype=np.int64),
            prompt=np.arange(groups),
            size=np.full(groups, size),
            dead=(counts == 0) | (counts == size),
            num_passing=counts,
            level_counts=np.column_stack([counts, size - counts]),
        )
        for counts in passed
    ]


def coverage(rates: Rates, groups: int, size: int, trials: int) -> tuple[float, float, float, float]:
    """The true gap, the share of intervals that hold it, the share that lies below it, and the median width."""
    p = rates(np.random.default_rng(0), 2_000_000)
    truth = float(iid_prediction(p, size).mean() - iid_prediction(p.mean(), size))
    logs = tables(rates, groups, size, trials)
    ends = np.array(
        [found.jensen_gap.ends for found in estimate_degeneracies(logs, resampling=Resampling(num_resamples=100))]
    )
    held = (ends[:, 0] - 1e-9 <= truth) & (truth <= ends[:, 1] + 1e-9)
    below = float(np.mean(ends[:, 1] + 1e-9 < truth))
    return truth, float(held.mean()), below, float(np.median(ends[:, 1] - ends[:, 0]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    print("| pass rates | groups x G | true gap | held | whole interval below it | median width |")
    print("|---|---|--:|--:|--:|--:|")
    for name, rates, groups, size in CASES:
        truth, held, below, width = coverage(rates, groups, size, trials)
        cells = f"{abs(truth):.3f} | {100 * held:.1f} % | {100 * below:.1f} % | {width:.3f}"
        print(f"| {name} | {groups} x {size} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
