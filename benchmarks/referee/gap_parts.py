"""The two parts of the Jensen gap against their truths, on simulated logs whose pass rates are known.

`python benchmarks/referee/gap_parts.py` prints, for each population, the true part over time and between prompts of the
simulated prompts, the mean of what gradscope says, and how often its 95 % intervals hold the truth. The truths are sums
over the pass rates p_x(s) that the log was drawn from: over time mean_s f(m_s) - f(mean_s m_s) and between prompts
mean f(p_x(s)) - mean_s f(m_s), f(p) = p^G + (1-p)^G and m_s the mean over all prompts of the log at step s. Three
minutes; `--trials 50` for a look.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable, estimate_degeneracy, split_gap
from gradscope.metrics.uncertainty.intervals import Resampling

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Population:
    """A kind of log: prompts with difficulties theta_x, p_x(s) = 1 / (1 + exp(-theta_x - drift (s/S - 1/2)))."""

    name: str
    num_prompts: int
    num_steps: int
    per_step: int
    group_size: int = 4
    shape: tuple[float, float] = (0.7, 0.7)
    drift: float = 0.0
    fresh: bool = False
    """Whether each step has prompts of its own; else epochs over all prompts in random order."""


POPULATIONS = (
    Population(name="256 prompts, 960 groups, epochs, trend", num_prompts=256, num_steps=120, per_step=8, drift=0.85),
    Population(name="480 prompts, 8 a step, no trend", num_prompts=480, num_steps=60, per_step=8, fresh=True),
    Population(name="160 prompts, 4 a step, no trend", num_prompts=160, num_steps=40, per_step=4, fresh=True),
    Population(name="12 prompts, 4 a step, trend", num_prompts=12, num_steps=60, per_step=4, drift=2.1),
    Population(name="12 prompts, all at each step, trend", num_prompts=12, num_steps=20, per_step=12, drift=2.1),
    Population(name="24 prompts, 6 a step, strong trend", num_prompts=24, num_steps=40, per_step=6, drift=6.0),
    Population(name="G 8, 8 a step, no trend", num_prompts=160, num_steps=20, per_step=8, group_size=8, fresh=True),
    Population(
        name="G 8, 4 a step, trend", num_prompts=400, num_steps=100, per_step=4, group_size=8, drift=3, fresh=True
    ),
    Population(
        name="G 2, 3 a step, trend", num_prompts=150, num_steps=50, per_step=3, group_size=2, drift=2, fresh=True
    ),
    Population(name="G 16, 32 a step, two steps", num_prompts=64, num_steps=2, per_step=32, group_size=16, drift=4),
    Population(
        name="hard prompts, trend", num_prompts=320, num_steps=40, per_step=8, shape=(0.3, 3), drift=3, fresh=True
    ),
    Population(
        name="equal prompts, trend", num_prompts=320, num_steps=40, per_step=8, shape=(200, 200), drift=3, fresh=True
    ),
)


def predicted(rate: Array | float, size: int) -> Array:
    """p^G + (1-p)^G."""
    return np.asarray(np.power(rate, size) + np.power(1 - np.asarray(rate), size))


def simulate(population: Population, seed: int) -> tuple[GroupTable, float, float]:
    """A log, its true part over time and between prompts."""
    rng = np.random.default_rng(seed)
    size = population.group_size
    start = rng.beta(*population.shape, population.num_prompts)
    difficulty = np.log(start / (1 - start))
    shift = population.drift * (np.arange(population.num_steps) / max(population.num_steps - 1, 1) - 0.5)
    rates = 1 / (1 + np.exp(-difficulty[:, None] - shift))
    visits = population.num_steps * population.per_step
    epochs = -(-visits // population.num_prompts)
    order = np.concatenate([rng.permutation(population.num_prompts) for _ in range(epochs)])[:visits]
    step = np.repeat(np.arange(population.num_steps), population.per_step)
    passed = rng.binomial(size, rates[order, step])
    table = GroupTable(
        step=step + 1,
        prompt=order.astype(np.str_),
        size=np.full(visits, size),
        dead=(passed == 0) | (passed == size),
        num_passing=passed,
        level_counts=np.column_stack([passed, size - passed]),
    )
    means = rates.mean(axis=0)
    by_step = float(predicted(means, size).mean())
    return table, by_step - float(predicted(means.mean(), size)), float(predicted(rates, size).mean()) - by_step


def estimates(table: GroupTable) -> tuple[Estimate, Estimate]:
    """What gradscope says of a log: over time, between prompts."""
    gap = estimate_degeneracy(table, resampling=Resampling(num_resamples=400)).jensen_gap
    between, over_time = split_gap(table, gap)
    return over_time, between


def main() -> None:
    """Print one row a population."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    trials = parser.parse_args().trials
    print("| log | over time: truth | said, +- se | held | between prompts: truth | said, +- se | held |")
    print("|---|---|---|---|---|---|---|")
    for population in POPULATIONS:
        rows = []
        for seed in range(trials):
            table, *truths = simulate(population, seed)
            parts = estimates(table)
            row: list[float] = []
            for truth, part in zip(truths, parts, strict=True):
                low, high = part.ends
                row += [truth, part.value or 0.0, low - 1e-12 <= truth <= high + 1e-12]
            rows.append(row)
        columns = np.array(rows).T
        cells = []
        for truth, said, held in (columns[:3], columns[3:]):
            error = (said - truth).std() / trials**0.5
            cells += [f"{truth.mean():+.4f}", f"{said.mean():+.4f} +- {error:.4f}", f"{100 * held.mean():.1f} %"]
        print(f"| {population.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
