"""How often the test of one pass rate rejects, where there is one and where there is not, and what it leaves open.

`python benchmarks/referee/one_rate.py` prints three tables: the level at rare and at usual pass rates, the power
against Beta populations, and how often the standard deviation that is said not to be excluded is at least the true one.
Two minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.outcomes.dispersion import dispersion_test, estimate_rate_variance
from gradscope.metrics.uncertainty.intervals import Resampling

Rates = Callable[[np.random.Generator, int], NDArray[np.float64]]
LEVELS = (0.05, 0.01, 0.001)


def p_values(rates: Rates, size: int, groups: int, steps: int, trials: int) -> tuple[NDArray[np.float64], float]:
    """One p-value a simulated log, 1 where the test is undefined, and seconds a test."""
    rng = np.random.default_rng([size, groups, steps])
    step = np.repeat(np.arange(steps), groups // steps)
    found, seconds = [], 0.0
    for seed in range(trials):
        passed = rng.binomial(size, rates(rng, groups))
        start = time.perf_counter()
        p_value = dispersion_test(np.full(groups, size), passed, step, seed=seed).p_value.value
        seconds += time.perf_counter() - start
        found.append(1.0 if p_value is None else p_value)
    return np.array(found), seconds / trials


def reach(shape: tuple[float, float], size: int, groups: int, trials: int) -> float:
    """How often the upper end of the standard deviation of pass rates is at least the true one."""
    rng = np.random.default_rng([size, groups])
    a, b = shape
    truth = (a * b / ((a + b) ** 2 * (a + b + 1))) ** 0.5
    held = 0
    for seed in range(trials):
        passed = rng.binomial(size, rng.beta(a, b, groups))
        found = estimate_rate_variance(
            np.full(groups, size), passed, np.arange(groups), resampling=Resampling(num_resamples=500, seed=seed)
        )
        held += found.high is None or max(found.high, 0.0) ** 0.5 >= truth
    return held / trials


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    print("| one pass rate | G | groups | steps | rejects at 5 % | 1 % | 0.1 % | ms a test |")
    print("|---|---|---|---|---|---|---|---|")
    cases = (
        *((0.005, 4, 1200, 1), (0.005, 4, 1200, 150), (0.002, 8, 1200, 1), (0.01, 4, 2000, 1), (0.995, 4, 1200, 1)),
        *((0.05, 8, 1200, 12), (0.3, 8, 1200, 1), (0.5, 4, 1200, 1), (0.02, 16, 320, 20), (0.5, 8, 64, 8)),
    )
    for rate, size, groups, steps in cases:
        found, seconds = p_values(lambda _, count, rate=rate: np.full(count, rate), size, groups, steps, trials)
        cells = " | ".join(f"{100 * np.mean(found <= level):.1f} %" for level in LEVELS)
        print(f"| {rate} | {size} | {groups} | {steps} | {cells} | {1000 * seconds:.1f} |", flush=True)
    print("\n| pass rates | G | groups | steps | rejects at 5 % | 1 % | 0.1 % |\n|---|---|---|---|---|---|---|")
    for (a, b), size, groups, steps in (
        *(((0.5, 0.5), 4, 64, 8), ((2, 2), 4, 64, 8), ((20, 20), 8, 160, 20), ((20, 20), 8, 1200, 12)),
        *(((0.05, 5), 4, 160, 20), ((0.05, 5), 4, 1200, 1), ((1, 200), 4, 1200, 1)),
    ):
        found, _ = p_values(lambda rng, count, a=a, b=b: rng.beta(a, b, count), size, groups, steps, trials // 4)
        cells = " | ".join(f"{100 * np.mean(found <= level):.1f} %" for level in LEVELS)
        print(f"| Beta({a}, {b}) | {size} | {groups} | {steps} | {cells} |", flush=True)
    print("\n| pass rates | G | groups | upper end at or above the true deviation |\n|---|---|---|---|")
    for shape, size, groups in (((100, 100), 8, 64), ((100, 100), 8, 400), ((20, 80), 4, 64), ((1, 200), 4, 1200)):
        print(
            f"| Beta{shape} | {size} | {groups} | {100 * reach(shape, size, groups, trials // 4):.1f} % |", flush=True
        )


if __name__ == "__main__":
    main()
