"""How often the 95 % intervals contain the truth, by simulation from known distributions of pass rates.

`python benchmarks/coverage.py` prints the table of docs/research/degeneracy_intervals.csv; `--trials 200` takes a
minute and is rougher.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable, estimate_at_size
from gradscope.metrics.outcomes.groups import iid_prediction
from gradscope.metrics.outcomes.passk import estimate_pass_table, pass_at_k
from gradscope.metrics.uncertainty.bootstrap import bootstrap_difference
from gradscope.metrics.uncertainty.intervals import Resampling

Array = NDArray[np.float64]
Sampler = Callable[[np.random.Generator, int], Array]

N, G, K = 8, 4, 4
"""Samples a prompt, group size and budget of the simulation."""
POPULATIONS: dict[str, Sampler] = {
    "Beta(2, 2)": lambda rng, size: rng.beta(2, 2, size),
    "Beta(.5, .5)": lambda rng, size: rng.beta(0.5, 0.5, size),
    "Beta(3, 1)": lambda rng, size: rng.beta(3, 1, size),
    "Beta(.3, 6)": lambda rng, size: rng.beta(0.3, 6, size),
    "Beta(.1, .9)": lambda rng, size: rng.beta(0.1, 0.9, size),
    "all p = .2": lambda rng, size: np.full(size, 0.2),
}
COLUMNS = ("pass rate", "D(4)", "i.i.d.", "gap", "pass@4", "pass^4", "difference")


def truths(sampler: Sampler) -> dict[str, float]:
    """The population's own numbers, from two million prompts."""
    p = sampler(np.random.default_rng(0), 2_000_000)
    degenerate, predicted = float(iid_prediction(p, G).mean()), float(iid_prediction(p.mean(), G))
    at_least_one = float(1 - np.mean((1 - p) ** K))
    numbers = (p.mean(), degenerate, predicted, degenerate - predicted, at_least_one, np.mean(p**K), 0.0)
    return dict(zip(COLUMNS, map(float, numbers), strict=True))


def estimates(sampler: Sampler, num_prompts: int, seed: int, num_resamples: int) -> dict[str, Estimate]:
    """One simulated log, and what gradscope says about it; the difference is that of two policies that are equal."""
    rng = np.random.default_rng(seed)
    p = sampler(rng, num_prompts)
    c, other = rng.binomial(N, p), rng.binomial(N, p)
    n = np.full(num_prompts, N)
    table = GroupTable(
        step=np.ones(num_prompts, dtype=np.int64),
        prompt=np.arange(num_prompts).astype(np.str_),
        size=n,
        dead=(c == 0) | (c == N),
        num_passing=c,
        level_counts=np.column_stack([c, n - c]),
    )
    resampling = Resampling(num_resamples=num_resamples)
    at_size = estimate_at_size(table, G, resampling=Resampling(num_resamples=num_resamples, seed=seed))
    (pass_rate, _), (at_least_one, all_of_them) = estimate_pass_table(n, c, [1, K], resampling=resampling)
    difference = bootstrap_difference(pass_at_k(n, c, K), pass_at_k(n, other, K), resampling=resampling)
    found = (pass_rate, at_size.degeneracy, at_size.iid_prediction, at_size.jensen_gap, at_least_one, all_of_them)
    return dict(zip(COLUMNS, (*found, difference), strict=True))


def coverage(sampler: Sampler, num_prompts: int, *, trials: int, num_resamples: int) -> dict[str, float]:
    """Share of trials whose interval holds the truth."""
    truth = truths(sampler)
    hits = dict.fromkeys(COLUMNS, 0)
    for seed in range(trials):
        for name, estimate in estimates(sampler, num_prompts, seed, num_resamples).items():
            if estimate.low is not None and estimate.high is not None:
                hits[name] += estimate.low - 1e-9 <= truth[name] <= estimate.high + 1e-9
    return {name: count / trials for name, count in hits.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--num-resamples", type=int, default=1000)
    parser.add_argument("--prompts", type=int, nargs="+", default=[30, 100, 500])
    options = parser.parse_args()
    error = (0.95 * 0.05 / options.trials) ** 0.5
    print(f"{options.trials} trials, {N} samples a prompt; standard error of an entry {100 * error:.1f} points\n")
    print("| prompts | pass rates | " + " | ".join(COLUMNS) + " |")
    print("|---|---|" + "---|" * len(COLUMNS))
    for num_prompts in options.prompts:
        for name, sampler in POPULATIONS.items():
            found = coverage(sampler, num_prompts, trials=options.trials, num_resamples=options.num_resamples)
            print(
                f"| {num_prompts} | {name} | " + " | ".join(f"{100 * found[c]:.1f}" for c in COLUMNS) + " |", flush=True
            )


if __name__ == "__main__":
    main()
