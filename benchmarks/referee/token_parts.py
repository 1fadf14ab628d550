"""Coverage of the intervals of parts of a gradient: cosines, norms, shares along it and shares of its energy.

`python benchmarks/referee/token_parts.py` makes steps of 8 to 64 groups whose norms differ by a factor of exp(tail) in
the standard deviation, a share of them dead, and asks how often the 95 % interval of one of two parts holds the mean
over such steps. Then it asks how often `gradscope claims` says falsely which tokens have most of the energy, and that
advantages move the entropy, or that it goes as predicted, where neither has to do with the other. Two minutes.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from gradscope.diagnostics.claims.evidence import in_range
from gradscope.diagnostics.claims.outcomes import MOST
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import ANY, norm_ratio, products_without, ratio_over_groups, sum_cosine, sum_share

NAMES = ("cosine", "norm", "along the gradient", "energy")
FIRST, WHOLE = np.array([1.0, 0.0]), np.array([1.0, 1.0])
_COLUMNS = 20
_DEAD = 0.4


def estimates(rng: np.random.Generator, mean: np.ndarray, groups: int, tail: float) -> tuple[Estimate, ...] | None:
    """The four numbers of one made-up step; None where fewer than three of its groups live."""
    live = rng.random(groups) >= _DEAD
    if live.sum() < 3:
        return None
    scale = np.exp(tail * rng.normal(size=groups)) * live
    sums = (mean[:, None] + rng.normal(size=(2, groups, _COLUMNS))) * scale[:, None]
    products = products_without(np.einsum("vjp,wkp->vjwk", sums, sums))
    energies = np.square(sums).sum(axis=2)
    return (
        sum_cosine(products, FIRST, WHOLE),
        norm_ratio(products, FIRST, WHOLE),
        sum_share(products, FIRST, WHOLE),
        ratio_over_groups(energies[0], energies.sum(axis=0)),
    )


def held(groups: int, tail: float, trials: int, seed: int) -> list[float]:
    """How often each interval holds the mean over steps."""
    rng = np.random.default_rng(seed)
    mean = 0.3 * rng.normal(size=(2, _COLUMNS))
    steps = [step for step in (estimates(rng, mean, groups, tail) for _ in range(trials)) if step is not None]
    truths = [np.mean([step[place].value for step in steps]) for place in range(len(NAMES))]
    return [
        float(np.mean([step[place].ends[0] <= truth <= step[place].ends[1] for step in steps]))
        for place, truth in enumerate(truths)
    ]


def told(groups: int, tail: float, share: float, trials: int, seed: int) -> tuple[float, float]:
    """How often tokens that have a share of the energy are said to have most of it, and not to.

    Args:
        share: Its mean over groups; of one group it is drawn from a beta distribution of standard deviation about 0.16.

    Returns:
        Both, of all trials.
    """
    rng, verdicts = np.random.default_rng(seed), []
    for _ in range(trials):
        energy = np.exp(2 * tail * rng.normal(size=groups)) * (rng.random(groups) >= _DEAD)
        part = rng.beta(8 * share, 8 * (1 - share), size=groups)
        verdicts.append(in_range(ratio_over_groups(energy * part, energy), MOST, 1.0))
    return verdicts.count("supported") / trials, verdicts.count("contradicted") / trials


def told_of_covariance(groups: int, trials: int, seed: int) -> tuple[float, float]:
    """How often advantages that know nothing of log-probabilities are said to go with them, and against them.

    Groups of eight rollouts of twelve tokens, with prompts and rollouts that the policy knows more or less of.

    Returns:
        Both, of all trials.
    """
    rng, verdicts = np.random.default_rng(seed), []
    for _ in range(trials):
        known = np.exp(rng.normal(size=(groups, 1, 1)) + 0.5 * rng.normal(size=(groups, 8, 1)))
        logprobs = -0.2 * known * rng.exponential(1.0, (groups, 8, 12))
        rewards = (rng.random((groups, 8, 1)) < rng.random((groups, 1, 1))).astype(float)
        spread = rewards.std(axis=1, keepdims=True)
        advantages = np.divide(rewards - rewards.mean(axis=1, keepdims=True), spread, where=spread > 0, out=0 * rewards)
        parts = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
        covariance = ratio_over_groups(parts.sum(axis=(1, 2)), np.full(groups, 96.0), ANY)
        verdicts.append(in_range(covariance, 0.0, math.inf))
    return verdicts.count("supported") / trials, verdicts.count("contradicted") / trials


def told_of_prediction(groups: int, tail: float, trials: int, seed: int) -> tuple[float, float]:
    """How often a gradient that knows nothing of the update is said to predict a change of entropy, and not to.

    Returns:
        Both, of all trials.
    """
    rng, sides = np.random.default_rng(seed), []
    for _ in range(trials):
        scale = np.exp(tail * rng.normal(size=groups))
        sums = rng.normal(size=(2, groups, _COLUMNS)) * scale[:, None]
        products = products_without(np.einsum("vjp,wkp->vjwk", sums, sums))
        sides.append(sum_cosine(products, [1.0, 0.0], [0.0, 1.0]).side_of_zero)
    return sides.count(1) / trials, sides.count(-1) / trials


def main() -> None:
    """Print one row a number of groups and a tail, then one of the verdicts for shares below and above one half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    print(f"| groups | tail | {' | '.join(NAMES)} |\n|---:|---:|{'---:|' * len(NAMES)}")
    for groups in (8, 16, 32, 64):
        for tail in (0.5, 1.0, 1.5):
            cells = [f"{100 * share:.0f} %" for share in held(groups, tail, options.trials, seed=groups)]
            print(f"| {groups} | {tail} | {' | '.join(cells)} |", flush=True)
    print("| groups | tail | share | supported | contradicted |\n|---:|---:|---:|---:|---:|")
    for groups in (8, 16, 64):
        for tail in (0.5, 1.5):
            for share in (0.4, 0.6, 0.8):
                cells = [f"{100 * each:.1f} %" for each in told(groups, tail, share, options.trials, seed=groups)]
                print(f"| {groups} | {tail} | {share} | {' | '.join(cells)} |", flush=True)
    print("| claim | groups | tail | supported | contradicted |\n|---|---:|---:|---:|---:|")
    for groups in (8, 16, 64):
        cells = [f"{100 * each:.1f} %" for each in told_of_covariance(groups, options.trials, seed=groups)]
        print(f"| entropy.covariance | {groups} | | {' | '.join(cells)} |", flush=True)
        for tail in (0.5, 1.5):
            cells = [f"{100 * each:.1f} %" for each in told_of_prediction(groups, tail, options.trials, seed=groups)]
            print(f"| entropy.predicted | {groups} | {tail} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
