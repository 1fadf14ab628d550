"""Is the verdict of `gradscope passk` on two policies right where the truth is known?

`python benchmarks/referee/passk_reach.py` prints a table: a second policy is made from a first one in a known way, both
are sampled, and the verdicts are counted. Best of m of the first policy (p' = 1 - (1-p)^m) solves the same prompts with
fewer samples; an expansion solves prompts that the first one never does. The last columns say how often the compression
factor's interval at the smallest k, or its lower bound, holds m. Rates and outcomes are drawn here, and nothing but
what is judged is imported.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.passk.measure import compare_samples
from gradscope.diagnostics.passk.samples import Samples
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.source import Source

Array = NDArray[np.float64]
Rng = np.random.Generator
Draw = Callable[[Rng, int], Array]

BASES: dict[str, Draw] = {
    "Beta(.3, 1)": lambda rng, size: rng.beta(0.3, 1, size),
    "Beta(.5, .5)": lambda rng, size: rng.beta(0.5, 0.5, size),
    "Beta(2, 2)": lambda rng, size: rng.beta(2, 2, size),
    "Beta(1, 9)": lambda rng, size: rng.beta(1, 9, size),
    "log-uniform from .0001": lambda rng, size: 0.0001 ** rng.random(size),
    "log-uniform from .01": lambda rng, size: 0.01 ** rng.random(size),
    "points .02, .5": lambda rng, size: rng.choice([0.02, 0.5], size),
    "points .003, .3": lambda rng, size: rng.choice([0.003, 0.3], size),
    "40 % at 0, Beta(2, 2)": lambda rng, size: np.where(rng.random(size) < 0.4, 0.0, rng.beta(2, 2, size)),
}


def best_of(m: float) -> Callable[[Rng, Array], tuple[Array, Array]]:
    """The same support, sharpened."""
    return lambda _, rates: (rates, 1 - (1 - rates) ** m)


def by_prompt(most: float) -> Callable[[Rng, Array], tuple[Array, Array]]:
    """The same support, sharpened by another factor on every prompt."""
    return lambda rng, rates: (rates, 1 - (1 - rates) ** (most ** rng.random(len(rates))))


def expansion(share: float, m: float = 1.0, rate: float = 0.3) -> Callable[[Rng, Array], tuple[Array, Array]]:
    """A share of prompts is impossible for the first and has ``rate`` for the second; the others are best of m."""

    def change(rng: Rng, rates: Array) -> tuple[Array, Array]:
        new = rng.random(len(rates)) < share
        return np.where(new, 0.0, rates), np.where(new, rate, 1 - (1 - rates) ** m)

    return change


def losses(share: float, m: float, gained: float = 0.0) -> Callable[[Rng, Array], tuple[Array, Array]]:
    """Best of m, but a share of prompts is lost altogether, and another may be won."""

    def change(rng: Rng, rates: Array) -> tuple[Array, Array]:
        kind = rng.random(len(rates))
        lost, won = kind < share, (kind >= share) & (kind < share + gained)
        first = np.where(won, 0.0, rates)
        second = 1 - (1 - first) ** m
        return first, np.where(won, 0.3, np.where(lost, 0.0, second))

    return change


CHANGES: dict[str, tuple[str, Callable[[Rng, Array], tuple[Array, Array]]]] = {
    "identical": ("same", best_of(1)),
    "best of 2": ("sharper", best_of(2)),
    "best of 8": ("sharper", best_of(8)),
    "best of 32": ("sharper", best_of(32)),
    "best of 64": ("sharper", best_of(64)),
    "best of 1 to 64, by prompt": ("sharper", by_prompt(64)),
    "10 % new": ("wider", expansion(0.1)),
    "30 % new": ("wider", expansion(0.3)),
    "30 % new, best of 8": ("wider", expansion(0.3, 8)),
    "10 % lost, best of 8": ("narrower", losses(0.1, 8)),
    "30 % lost, best of 8": ("narrower", losses(0.3, 8)),
    "10 % lost, 10 % new, best of 8": ("both", losses(0.1, 8, 0.1)),
}
FALSE: dict[str, tuple[str, ...]] = {
    "same": ("capacity expansion", "search compression"),
    "sharper": ("capacity expansion",),
    "wider": ("search compression",),
    "narrower": ("capacity expansion",),
    "both": ("search compression",),
}
"""The verdicts that are false for each kind of change."""


def samples(name: str, n: int, correct: NDArray[np.int64]) -> Samples:
    """Counts as the reader would give them."""
    source = Source(path=name, format="simulated", recognized="simulated")
    prompts = tuple(map(str, range(len(correct))))
    n_of = np.full(len(correct), n)
    return Samples(name=name, source=source, prompts=prompts, num_samples=n_of, num_correct=correct, num_missing=0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=[64, 500])
    parser.add_argument("--samples", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--only", default="", help="changes whose name or kind holds this text")
    parser.add_argument("--by-base", action="store_true", help="a row for each first policy")
    options = parser.parse_args()
    print(
        "| second policy | first policy | prompts | n | logs | expansion | compression | undecided | false | m held |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for what, (kind, change) in CHANGES.items():
        if options.only not in f"{what} {kind}":
            continue
        for num_prompts in options.prompts:
            for n in options.samples:
                every: dict[str, Counter[str]] = {}
                for name, draw in BASES.items():
                    counted = every.setdefault(name if options.by_base else "all", Counter())
                    for seed in range(options.repeats):
                        rng = np.random.default_rng([seed, num_prompts, n, *name.encode()])
                        rates = change(rng, draw(rng, num_prompts))
                        first, second = (
                            samples(policy, n, rng.binomial(n, p))
                            for policy, p in zip(("first", "second"), rates, strict=True)
                        )
                        ks = [2**power for power in range(n.bit_length())]
                        resampling = Resampling(num_resamples=options.resamples, seed=seed)
                        found = compare_samples(first, second, ks, resampling=resampling)
                        counted[found.verdict] += 1
                        counted["false"] += found.verdict in FALSE[kind]
                        if kind == "same" or (what.startswith("best of") and "by prompt" not in what):
                            m = float(what.rpartition(" ")[2]) if kind == "sharper" else 1.0
                            factor, least = found.rows[0].compression_factor, found.rows[0].compression_at_least
                            if factor.interval is not None:
                                counted["held"] += factor.ends[0] <= m <= factor.ends[1]
                                counted["given"] += 1
                            elif least is not None:
                                counted["held"] += least <= m
                                counted["given"] += 1
                for name, counted in every.items():
                    logs = options.repeats * (1 if options.by_base else len(BASES))
                    held = f"{counted['held']}/{counted['given']}" if counted["given"] else ""
                    print(
                        f"| {what} | {name} | {num_prompts} | {n} | {logs} | {counted['capacity expansion']} "
                        f"| {counted['search compression']} | {counted['undecided']} | {counted['false']} | {held} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
