"""Forecasts tested by hiding: fit on the first samples of every prompt, forecast what all of them show.

`python benchmarks/forecast.py FOLDER` prints docs/research/degeneracy_the_distribution_of_pass_2.csv. FOLDER holds
HumanEval's 100 samples of CodeGen-16B (microsoft/CodeT) and the AIME24 and AMC23 samples of
open-thought/reasoning-gym-eval, as published. Each row hides the rest of the samples 50 times, each time others. The
errors are those of the inflated beta-binomial, also where the forecast was refused, and of the NPMLE.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.outcomes.forecast import PassRates, fit_pass_rates
from gradscope.metrics.outcomes.groups import all_equal_unbiased
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.rollouts.readers.detect import read_run

Outcomes = NDArray[np.int64]

FILES = {
    "HumanEval": "humaneval_codegen16b/HumanEval_codegen16b_n100_execution_results.jsonl",
    "AMC23": "reasoning_gym/llama3b_rl_step400_amc23_n50.json",
    "AIME24": "reasoning_gym/llama3b_rl_step400_aime24_n50.json",
}
CASES = (
    ("HumanEval", 16, 64, 100),
    ("HumanEval", 8, 32, 64),
    ("HumanEval", 4, 16, 32),
    ("AMC23", 16, 50, 50),
    ("AMC23", 8, 32, 50),
    ("AIME24", 16, 50, 50),
)
"""File, samples shown, G of the degeneracy forecast, k of the pass@k forecast."""


def outcomes(path: Path) -> Outcomes:
    """Outcomes of a file of samples, [prompts, n]."""
    run = read_run(path)
    return np.array([[int(rollout.reward or 0) for rollout in group.rollouts] for group in run.groups])


def errors(shown: Outcomes, truth: tuple[float, float], group_size: int, k: int) -> list[tuple[float, float, float]]:
    """Error of the fitted shape, error of the NPMLE, and whether the interval holds the truth; for D(G) and pass@k.

    Args:
        shown: The samples that are not hidden, [prompts, n].
        truth: D(G) and pass@k of all samples.
        group_size: G.
        k: The budget.

    Returns:
        One row for D(G), one for pass@k; the last entry of a forecast that is refused is not a number.

    Raises:
        SystemExit: The samples show no distribution of pass rates.
    """
    rates = fit_pass_rates(np.full(len(shown), shown.shape[1]), shown.sum(axis=1))
    if not isinstance(rates, PassRates):
        raise SystemExit(rates)
    points, weights = rates.free.points, rates.free.weights
    free = weights @ (points**group_size + (1 - points) ** group_size), 1 - weights @ (1 - points) ** k
    shape = rates.shape.all_pass(group_size) + rates.shape.all_fail(group_size), 1 - rates.shape.all_fail(k)
    rows = []
    for place, forecast in enumerate((rates.degeneracy(group_size), rates.pass_at_k(k))):
        held = np.nan
        if forecast.low is not None and forecast.high is not None:
            held = float(forecast.low <= truth[place] <= forecast.high)
        rows.append((shape[place] - truth[place], float(free[place]) - truth[place], held))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    print("| samples | shown | forecast | truth | error, mean | error, RMS | RMS of the NPMLE | held | refused |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, num_shown, group_size, k in CASES:
        every = outcomes(options.folder / FILES[name])
        n, c = np.full(len(every), every.shape[1]), every.sum(axis=1)
        dead = all_equal_unbiased(n, np.column_stack([c, n - c]), group_size)
        truth = float(dead.mean()), float(pass_at_k(n, c, k).mean())
        found = []
        for seed in range(options.repeats):
            shuffled = np.random.default_rng(seed).permuted(every, axis=1)
            found.append(errors(shuffled[:, :num_shown], truth, group_size, k))
        for place, what in enumerate((f"D({group_size})", f"pass@{k}")):
            shape, free, held = np.array(found)[:, place].T
            known = held[np.isfinite(held)]
            print(
                f"| {name} | {num_shown} of {every.shape[1]} | {what} | {truth[place]:.3f} | {shape.mean():+.3f} "
                f"| {np.sqrt(np.mean(shape**2)):.3f} | {np.sqrt(np.mean(free**2)):.3f} "
                f"| {100 * known.mean() if len(known) else 0:.0f} % | {len(held) - len(known)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
