"""Coverage and width of the interval of a mean rank when a step has fewer than ten groups.

`python benchmarks/referee/few_groups.py` simulates ranks of matrices of 16 rows from seven distributions and asks how
often the 95 % interval of their mean holds the true mean, beside Wilson's interval of the mean's share of [1, 16],
which was used before, and Student's on the rank itself. Twenty seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradscope.metrics.uncertainty.bootstrap import bounded_means
from gradscope.metrics.uncertainty.intervals import wilson_interval

Array = NDArray[np.float64]
ROWS = 16


def populations(rng: np.random.Generator) -> dict[str, Callable[[tuple[int, ...]], Array]]:
    """Name -> sampler of ranks."""

    def mixed(share: float, first: float, second: float, shape: tuple[int, ...]) -> Array:
        return np.where(rng.random(shape) < share, rng.normal(first, 0.1, shape), rng.normal(second, 1.0, shape))

    return {
        "normal, 8 +- 0.5": lambda shape: rng.normal(8, 0.5, shape),
        "uniform": lambda shape: rng.uniform(1, ROWS, shape),
        "1 + lognormal(0, 1)": lambda shape: np.minimum(1 + rng.lognormal(0, 1, shape), ROWS),
        "1 + 15 Beta(.5, 3)": lambda shape: 1 + (ROWS - 1) * rng.beta(0.5, 3, shape),
        "1 + 15 Beta(6, 1)": lambda shape: 1 + (ROWS - 1) * rng.beta(6, 1, shape),
        "half near 2, half near 12": lambda shape: mixed(0.5, 2, 12, shape),
        "nine of ten near 1.3, one near 9": lambda shape: mixed(0.9, 1.3, 9, shape),
    }


def intervals(values: Array) -> dict[str, tuple[float, float]]:
    """Method -> both ends."""
    low, high = wilson_interval(float((values.mean() - 1) / (ROWS - 1)), len(values))
    student = stats.ttest_1samp(values, 0).confidence_interval()
    (now,) = bounded_means(values[:, None], low=1.0, high=float(ROWS))
    return {
        "Wilson (before)": (1 + (ROWS - 1) * low, 1 + (ROWS - 1) * high),
        "Student, clipped": (max(student.low, 1.0), min(student.high, ROWS)),
        "Student on the logit (now)": now.ends,
    }


def main() -> None:
    """Print one row a population and number of groups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    names = list(intervals(np.array([1.5, 2.0])))
    print("| ranks | groups | " + " | ".join(f"{name}: held, median width" for name in names) + " |")
    print("|---|---|" + "---|" * len(names))
    for population, draw in populations(rng).items():
        truth = float(np.mean(np.clip(draw((1_000_000,)), 1, ROWS)))
        for groups in options.groups:
            found = [intervals(values) for values in np.clip(draw((options.trials, groups)), 1, ROWS)]
            cells = []
            for name in names:
                ends = np.array([one[name] for one in found])
                held = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
                cells.append(f"{100 * held:.1f} %, {np.median(ends[:, 1] - ends[:, 0]):.2f}")
            print(f"| {population} | {groups} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
