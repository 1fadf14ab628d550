"""Do forecasts hold in starved populations? Logs are drawn from populations whose truth is known.

`python benchmarks/referee/forecasts.py` prints a table: for each population and number of prompts the true D(G) and
pass@k beyond the n samples, the median forecast, the mean width of its interval, how many of the forecasts that were
given hold the truth, and how many were given at all. The truth is the mean over two million pass rates.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.outcomes.forecast import PassRates, fit_pass_rates

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]


def beta(a: float, b: float) -> Draw:
    """Pass rates that follow Beta(a, b)."""
    return lambda rng, size: rng.beta(a, b, size)


def points(*rates: float) -> Draw:
    """Pass rates that are one of a few, each as likely."""
    return lambda rng, size: rng.choice(rates, size)


def log_uniform(lowest: float) -> Draw:
    """Pass rates whose logarithm is uniform up to 0."""
    return lambda rng, size: lowest ** rng.random(size)


def inflated(at_zero: float, at_one: float, inner: Draw) -> Draw:
    """A share of prompts that never pass, one of those that always do, and the rest."""

    def draw(rng: np.random.Generator, size: int) -> Array:
        kind = rng.random(size)
        return np.where(kind < at_zero, 0.0, np.where(kind < at_zero + at_one, 1.0, inner(rng, size)))

    return draw


POPULATIONS: dict[str, tuple[str, Draw]] = {
    "57.5 % at 0, Beta(2, 2)": ("starved", inflated(0.575, 0.0, beta(2, 2))),
    "30 % at 0, 30 % at 1, Beta(5, 5)": ("starved", inflated(0.3, 0.3, beta(5, 5))),
    "70 % at .02, 30 % at .5": ("starved", points(*[0.02] * 7, *[0.5] * 3)),
    "80 % at 0, Beta(2, 2)": ("starved", inflated(0.8, 0.0, beta(2, 2))),
    "points .005, .1, .9": ("starved", points(0.005, 0.1, 0.9)),
    "40 % at 0, log-uniform": ("starved", inflated(0.4, 0.0, log_uniform(0.001))),
    "log-uniform from .0001": ("starved", log_uniform(0.0001)),
    "Beta(.1, .9)": ("starved", beta(0.1, 0.9)),
    "Beta(.3, 6)": ("benign", beta(0.3, 6)),
    "Beta(.5, 1.5)": ("benign", beta(0.5, 1.5)),
    "Beta(.5, .5)": ("benign", beta(0.5, 0.5)),
    "Beta(2, 2)": ("benign", beta(2, 2)),
    "Beta(3, 1)": ("benign", beta(3, 1)),
    "all .2": ("benign", points(0.2)),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--factors", type=int, nargs="+", default=[2, 8], help="how many times n a forecast reaches")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--only", default="", help="populations whose name or kind holds this text")
    options = parser.parse_args()
    print("| population | prompts | forecast | truth | median | width | held | given |")
    print("|---|---|---|---|---|---|---|---|")
    n = options.samples
    for name, (kind, draw) in POPULATIONS.items():
        if options.only not in f"{name} {kind}":
            continue
        rates = draw(np.random.default_rng(12345), 2_000_000)
        for num_prompts in options.prompts:
            fits = []
            for seed in range(options.repeats):
                rng = np.random.default_rng(seed)
                fits.append(fit_pass_rates(np.full(num_prompts, n), rng.binomial(n, draw(rng, num_prompts))))
            for size in [n * factor for factor in options.factors]:
                failing, passing = (1 - rates) ** size, rates**size
                for what, truth in (
                    (f"D({size})", float(np.mean(failing + passing))),
                    (f"pass@{size}", float(1 - np.mean(failing))),
                ):
                    found = [
                        fit.degeneracy(size) if what[0] == "D" else fit.pass_at_k(size)
                        for fit in fits
                        if isinstance(fit, PassRates)
                    ]
                    given = [one for one in found if one.is_defined]
                    ends = np.array([one.ends for one in given]).reshape(-1, 2)
                    held = int(np.sum((ends[:, 0] <= truth) & (truth <= ends[:, 1])))
                    median = np.median([one.value for one in given]) if given else np.nan
                    width = np.mean(ends[:, 1] - ends[:, 0]) if given else np.nan
                    print(
                        f"| {name} | {num_prompts} | {what} | {truth:.3f} | {median:.3f} | {width:.2f} "
                        f"| {held}/{len(given)} | {len(given)}/{options.repeats} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
