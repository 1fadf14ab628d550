"""What any distribution of pass rates allows: bounds on a share, whatever the shape, from binomial counts.

Legend: n samples of a prompt, c of them passing, J groups, P prompts, B cells of counts, K points of p.

Let f(p) be what a prompt of pass rate p adds to a share: (1-p)^k to the prompts that k samples leave unsolved. A number
g(c) for each count whose expectation is at least f(p) at every p makes the mean of g over the log an estimate from
above, whatever the distribution of pass rates is; with its standard error it is an upper bound. Of all such g a linear
program takes the one with the smallest bound, and the one below in the same way. Its dual is the largest share that a
distribution can have whose expected counts lie within a band around the observed ones; g does without the band's price
for covering all counts at once.

g is chosen on the counts that the NPMLE expects, not on those that were observed: chosen on these it would follow their
noise, and the bound would hold too rarely (``benchmarks/referee/forecasts.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.metrics.outcomes.pass_rates.mixture import GridMixture, binomial_chances
from gradscope.metrics.uncertainty.closed_form import Interval
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.metrics.uncertainty.level import student_quantile

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SPREAD = 2.0
"""What the choice of g pays for each standard error of a cell: with 1 the bounds held 92 % of the time at worst, with 3
they were a tenth wider."""
NUM_CELLS = 64
"""Counts of more samples are joined to this many cells at most, evenly in arcsin sqrt(c/n), 0 and n apart."""
_TAIL = 10.0 ** np.linspace(-5.0, -2.5, 15)
_CHECKED = np.sort(
    np.concatenate(
        [
            np.sin(np.linspace(0.0, np.pi / 2, 1001)) ** 2,
            10.0 ** np.linspace(-6.0, -2.5, 100),
            1 - 10.0 ** np.linspace(-6.0, -2.5, 100),
        ]
    )
)
"""Points at which g is held to f, and raised where it falls short between the points of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBounds:
    """The counts of a log, asked what they allow."""

    points: Array
    """Pass rates of the program, [K]."""
    chances: Array
    """Chance of each cell at each of them, [B, K]."""
    checked: Array
    """Chance of each cell at the points where g is checked, [B, many]."""
    expected: Array
    """Shares of the cells that the NPMLE expects, [B]."""
    cell: Counts
    """The cell of each group, [J]."""
    prompts: Counts
    """The prompt of each group, [J]."""

    @classmethod
    def of(cls, num_samples: Counts, num_passing: Counts, prompts: Counts, fit: GridMixture) -> RateBounds:
        """Join counts to cells.

        Args:
            num_samples: n of each group, [J].
            num_passing: c of each group, [J].
            prompts: The prompt of each group, [J].
            fit: Their NPMLE.

        Returns:
            The cells.
        """
        sizes, weights = np.unique(num_samples, return_counts=True)
        every = np.concatenate([np.column_stack([np.full(n + 1, n), np.arange(n + 1)]) for n in sizes.tolist()])
        labels, of_count = np.unique(_cell_of(*every.T), return_inverse=True)
        points = np.unique(np.concatenate([fit.points, _TAIL, 1 - _TAIL]))
        of_size = dict(zip(sizes.tolist(), (weights / weights.sum()).tolist(), strict=True))

        def joined(rates: Array) -> Array:
            cells = np.zeros((len(labels), len(rates)))
            chances = np.concatenate([share * binomial_chances(n, rates) for n, share in of_size.items()])
            np.add.at(cells, of_count, chances)
            return cells

        return cls(
            points=points,
            chances=joined(points),
            checked=joined(_CHECKED),
            expected=joined(fit.points) @ fit.weights,
            cell=np.searchsorted(labels, _cell_of(num_samples, num_passing)),
            prompts=prompts,
        )

    def interval(self, share: Callable[[Array], ArrayLike]) -> Interval:
        """A 95 % interval of a share under any distribution of pass rates.

        Args:
            share: f, from pass rates [K] to what a prompt of that rate adds, in [0, 1], [K].

        Returns:
            Both ends.
        """
        at_points, at_checked = (np.asarray(share(p), dtype=np.float64) for p in (self.points, _CHECKED))
        low, high = -self._above(-at_points, -at_checked), self._above(at_points, at_checked)
        return max(low, 0.0), min(high, 1.0)

    def _above(self, at_points: Array, at_checked: Array) -> float:
        """The upper bound of the mean of f over prompts."""
        from scipy.optimize import linprog  # takes 0.13 s, and most commands bound nothing

        num_cells, num_prompts = len(self.expected), int(self.prompts.max()) + 1
        # Half a prompt more in each cell: one that was never seen is not known to be empty.
        seen = (self.expected * num_prompts + 0.5) / (num_prompts + num_cells / 2)
        price = SPREAD * np.sqrt(seen * (1 - seen) / num_prompts)
        # g = constant + up - down: a constant has no error and pays nothing.
        solved = linprog(
            np.concatenate([price + self.expected, price - self.expected, [1.0, -1.0]]),
            A_ub=np.column_stack([-self.chances.T, self.chances.T, -np.ones(len(at_points)), np.ones(len(at_points))]),
            b_ub=-at_points,
            bounds=(0, None),
            method="highs",
        )
        up, down, constant = np.split(solved.x, [num_cells, 2 * num_cells])
        g = up - down + constant[0] - constant[1]
        g += max(0.0, float(np.max(at_checked - g @ self.checked)))
        values = g[self.cell]
        by_prompt = cluster_sums((values - values.mean())[:, None], self.prompts)[:, 0]
        observed = float(by_prompt @ by_prompt) / len(values) ** 2
        modelled = float(seen @ (g - seen @ g) ** 2) / len(values)
        error = np.sqrt(max(observed, modelled))
        return float(values.mean() + student_quantile(num_prompts - 1) * error)


def _cell_of(num_samples: Counts, num_passing: Counts) -> Counts:
    """A number for the cell of each count: 0 for none passing, the largest for all."""
    place = np.ceil(2 / np.pi * np.arcsin(np.sqrt(num_passing / num_samples)) * NUM_CELLS)
    return np.where(num_passing == num_samples, NUM_CELLS + 1, place).astype(np.int64)
