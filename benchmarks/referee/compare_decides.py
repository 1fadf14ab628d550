"""How often `gradscope compare` decides what is not so, and what it would find, on runs that bifurcate.

`python benchmarks/referee/compare_decides.py` simulates arms of runs whose metric is high or, for some seeds,
collapsed, paired by seed. The first table has equal arms: the share of comparisons with at least one claim, by the
corrected t test (which decided before) and by what decides and suggests now. The second has two arms of equal means, of
which one bifurcates and one does not. The third has one arm that is better in one metric: how often that is decided.
The fourth asks for the power at the difference that is printed as least detectable, for normal differences. Three
minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.compare.measure import LEVEL, POWER, judged
from gradscope.metrics.uncertainty.paired import (
    least_detectable_mean,
    paired_t_p_value,
    sign_flip_p_value,
    student_mean,
)
from gradscope.results.compare import ComparedPair

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def bifurcating(share: float, noise: float) -> Draw:
    """Runs at 0.8, a share of them at 0.2."""
    return lambda rng, shape: np.where(rng.random(shape) < share, 0.2, 0.8) + rng.normal(0, noise, shape)


RUNS: dict[str, Draw] = {
    "1 of 5 collapses, noise .005": bifurcating(0.2, 0.005),
    "1 of 2 collapses, noise .02": bifurcating(0.5, 0.02),
    "1 of 10 collapses, noise .02": bifurcating(0.1, 0.02),
    "three modes": lambda rng, shape: rng.choice([0.1, 0.5, 0.9], shape) + rng.normal(0, 0.01, shape),
    "log-normal": lambda rng, shape: rng.lognormal(0, 1, shape),
    "normal": lambda rng, shape: rng.normal(0.5, 0.1, shape),
}


def verdicts(values: Array) -> tuple[ComparedPair, ...]:
    """Every metric of every two arms, [arms, metrics, seeds]."""
    pairs = []
    for first, second in combinations(range(len(values)), 2):
        for metric, differences in enumerate(values[second] - values[first]):
            p_value = paired_t_p_value(differences)
            pairs.append(
                ComparedPair(
                    first=str(first),
                    second=str(second),
                    changed="advantage",
                    metric=str(metric),
                    difference=student_mean(differences),
                    p_value=p_value,
                    p_holm=None,
                    sign_flip_p_value=sign_flip_p_value(differences),
                    num_pairs=len(differences),
                    test="paired t",
                    undefined=None,
                    spread=None if p_value is None else float(differences.std(ddof=1)),
                )
            )
    return judged(pairs)


def false_claims(draw: Draw, arms: int, metrics: int, seeds: int, trials: int) -> list[float]:
    """Share of comparisons of equal arms with a claim: by t before, deciding now, at least suggesting now."""
    rng = np.random.default_rng([arms, metrics, seeds])
    counts = np.zeros(3)
    for _ in range(trials):
        found = verdicts(draw(rng, (arms, metrics, seeds)))
        counts += (
            any(pair.p_holm is not None and pair.p_holm < LEVEL for pair in found),
            any(pair.verdict == "decides" for pair in found),
            any(pair.verdict != "open" for pair in found),
        )
    return (counts / trials).tolist()


def unequal_arms(share: float, seeds: int, tests: int, trials: int) -> list[float]:
    """The same where one arm is at 0.8 and for a share of seeds at 0.2, the other at their mean for every seed."""
    rng = np.random.default_rng([seeds, tests])
    counts = np.zeros(3)
    for _ in range(trials):
        first = bifurcating(share, 0.005)(rng, (tests, seeds))
        second = rng.normal(0.8 - 0.6 * share, 0.005, (tests, seeds))
        found = verdicts(np.stack([first, second]))
        counts += (
            any(pair.p_holm is not None and pair.p_holm < LEVEL for pair in found),
            any(pair.verdict == "decides" for pair in found),
            any(pair.verdict != "open" for pair in found),
        )
    return (counts / trials).tolist()


def power(draw: Draw, shift: float, metrics: int, seeds: int, trials: int) -> float:
    """How often a shift of one metric between two arms is decided."""
    rng = np.random.default_rng([metrics, seeds])
    decided = 0
    for _ in range(trials):
        values = draw(rng, (2, metrics, seeds))
        values[1, 0] += shift
        decided += verdicts(values)[0].verdict == "decides"
    return decided / trials


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=500)
    trials = parser.parse_args().trials
    print("| equal arms | seeds | tests | t with Holm (before) | decides (now) | decides or suggests (now) |")
    print("|---|---|---|---|---|---|")
    for name, draw in RUNS.items():
        for seeds, arms, metrics in ((5, 2, 5), (5, 4, 5), (8, 2, 5), (10, 4, 3), (12, 4, 5)):
            shares = false_claims(draw, arms, metrics, seeds, trials)
            tests = arms * (arms - 1) // 2 * metrics
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            print(f"| {name} | {seeds} | {tests} | {cells} |", flush=True)
    print(
        "\n| one arm bifurcates, equal means | seeds | tests | t with Holm (before) | decides | decides or suggests |"
    )
    print("|---|---|---|---|---|---|")
    for share in (0.5, 0.2):
        for seeds, tests in ((5, 1), (5, 5), (8, 1), (10, 5)):
            cells = " | ".join(f"{100 * value:.1f} %" for value in unequal_arms(share, seeds, tests, trials))
            print(f"| {share:.0%} of its seeds collapse | {seeds} | {tests} | {cells} |", flush=True)
    print(
        "\n| two arms, one metric of m better by | 8 seeds, m 1 | 8, m 5 | 10, m 5 | 20, m 5 |\n|---|---|---|---|---|"
    )
    for name, draw, shift in (
        *(("normal, 1 SD of a run", RUNS["normal"], 0.1), ("normal, 2 SD", RUNS["normal"], 0.2)),
        *(("normal, 3 SD", RUNS["normal"], 0.3), ("1 of 5 collapses, +.1", RUNS["1 of 5 collapses, noise .005"], 0.1)),
        ("1 of 10 collapses, +.1", RUNS["1 of 10 collapses, noise .02"], 0.1),
    ):
        cells = [
            power(draw, shift, metrics, seeds, 200 if seeds < 20 else 40)
            for seeds, metrics in ((8, 1), (8, 5), (10, 5), (20, 5))
        ]
        print(f"| {name} | {' | '.join(f'{100 * cell:.0f} %' for cell in cells)} |", flush=True)
    print(f"\n| pairs | tests | least detectable, SD of a difference | decided there (aim {POWER:.0%}) |")
    print("|---|---|---|---|")
    for seeds, tests in ((8, 1), (8, 3), (8, 6), (9, 5), (10, 5), (10, 18), (12, 18), (12, 64), (14, 64)):
        least = least_detectable_mean(seeds, LEVEL / tests, POWER)
        rng = np.random.default_rng([seeds, tests])
        p_values = [sign_flip_p_value(rng.normal(least, 1.0, seeds)) or 0.0 for _ in range(trials)]
        found = np.mean(np.array(p_values) <= LEVEL / tests)
        print(f"| {seeds} | {tests} | {least:.2f} | {100 * found:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
