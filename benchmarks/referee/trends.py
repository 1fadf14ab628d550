"""How often a trend over steps is claimed where there is none, with steps that resemble their neighbors.

`python benchmarks/referee/trends.py` simulates stationary AR(1) courses, which have no trend, and prints how often the
95 % interval of the change along the line leaves out zero: Student's, which takes steps for independent and is what
gradscope had, and gradscope's. The courses are made here, and Student's interval is scipy's.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import linregress

from gradscope.metrics.uncertainty.steps import trend

LENGTHS = (6, 10, 20, 50, 100)
CORRELATIONS = (0.0, 0.5, 0.8, 0.9)


def course(rng: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    """AR(1) from its stationary law."""
    values = rng.normal(size=steps)
    values[1:] *= np.sqrt(1 - correlation**2)
    for at in range(1, steps):
        values[at] += correlation * values[at - 1]
    return values


def main() -> None:
    """Prints a row for each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    heads = " | ".join(f"correlation {correlation:g}: Student's | now" for correlation in CORRELATIONS)
    print(f"| steps | {heads} |\n|{'---|' * (1 + 2 * len(CORRELATIONS))}")
    for steps in LENGTHS:
        cells = []
        for correlation in CORRELATIONS:
            claimed = np.zeros(2)
            for trial in range(trials):
                values = course(np.random.default_rng([trial, steps]), steps, correlation)
                low, high = trend(np.arange(steps), values).ends
                claimed += [linregress(np.arange(steps), values).pvalue < 0.05, not low <= 0 <= high]
            cells += [f"{share:.1%}" for share in claimed / trials]
        print(f"| {steps} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
