"""Degeneracy and pass@k beyond the samples that were drawn, from the distribution of pass rates over prompts.

Legend: n samples of a prompt, c of them passing, U distinct pairs (n, c), K grid points of p, J groups, P prompts, B
cells of counts, G group size, k budget.

From n samples the first n moments of the pass rates can be learned, and a larger G asks for higher ones: no data decide
between a prompt that never passes and one that passes once in a thousand. So the value of a forecast is a model's, that
of the zero-and-one-inflated beta-binomial, and it is refused where Pearson's test speaks against the model. Its
interval is not the model's: it holds whatever the distribution of pass rates is. Where that says nothing, the forecast
is refused too.

Two mixing distributions are fitted to the same counts. A beta distribution, with prompts that never or always pass
added where the counts need them, has two to four parameters, so it can be extrapolated beyond the samples; the
non-parametric maximum likelihood estimate (NPMLE; Laird 1978) has no shape at all. Both are maximum likelihood. The
NPMLE is restricted to a grid, on which its likelihood is concave, and found by EM; the inflated beta-binomial (Skellam
1948 without inflation) is found on a grid of mean, intraclass correlation and inflation and then polished.

Bounds hold whatever the distribution is. Let f(p) be what a prompt of pass rate p adds to a share: (1-p)^k to the
prompts that k samples leave unsolved. A number g(c) for each count whose expectation is at least f(p) at every p makes
the mean of g over the log an estimate from above; with its standard error it is an upper bound. Of all such g a linear
program takes the one with the smallest bound, and the one below in the same way. Its dual is the largest share that a
distribution can have whose expected counts lie within a band around the observed ones; g does without the band's price
for covering all counts at once. g is chosen on the counts that the NPMLE expects: chosen on the observed ones it would
follow their noise, and the bound would hold too rarely (``docs/research``).

Written here: scipy has no NPMLE, and its betabinom and binom are in scipy.stats, whose import would make `gradscope
degeneracy` a third slower (0.35 s of 1.1 s); the formulas are theirs, from scipy.special.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, chdtrc, expit, gammaln, xlog1py, xlogy

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import cluster_numbers, cluster_sums
from gradscope.metrics.uncertainty.intervals import Interval, student_quantile

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

NUM_POINTS = 151
"""Points of the NPMLE's grid, denser towards 0 and 1, both of which are among them. At 1/2 they are 0.01 apart, less
than the standard error of a rate of 1,000 samples (0.016), and the first above 0 is 0.0001: no log tells more."""
NUM_UPDATES = 1000  # EM updates; the likelihood then changes in the sixth digit
_MEANS = np.linspace(-9.0, 9.0, 37)
_CORRELATIONS = np.linspace(-9.0, 9.0, 37)
"""Logits of the means and intraclass correlations that the search starts from: from 0.0001 to 0.9999, beyond which no
log of thousands of samples tells rates apart, in steps of 1/2, so that the polish begins in the valley of the
maximum."""
_PARTS = (0.1, 0.5, 0.9)  # how much of the groups at an end the search takes for inflation at its start
_FARTHEST = 20.0  # log odds of an inflation stay within this: e^-20 is no group of any log
_TINY = 1e-300


class PassCounts(Struct, frozen=True, kw_only=True):
    """Counts of groups or prompts, equal ones merged."""

    num_samples: Counts  # n of each distinct pair, [U]
    num_passing: Counts  # c of each distinct pair, [U]
    weight: Array  # how many prompts have it, [U]
    pair: Counts  # the pair of each prompt, [J]

    @classmethod
    def from_counts(cls, num_samples: ArrayLike, num_passing: ArrayLike) -> PassCounts:
        """Merge equal counts n and c of prompts, [J] each.

        Raises:
            ValueError: There is no prompt, or a count is impossible.
        """
        n, c = np.asarray(num_samples, dtype=np.int64), np.asarray(num_passing, dtype=np.int64)
        if not len(n) or np.any(c < 0) or np.any(c > n):
            raise ValueError("a distribution needs prompts with 0 <= c <= n")
        base = int(n.max()) + 1
        pairs, index, weight = np.unique(n * base + c, return_inverse=True, return_counts=True)
        return cls(num_samples=pairs // base, num_passing=pairs % base, weight=weight.astype(np.float64), pair=index)


class InflatedBeta(Struct, frozen=True, kw_only=True):
    """Pass rates that are 0 for some prompts, 1 for some, and follow Beta(a, b) for the rest."""

    a: float  # first shape
    b: float  # second shape
    at_zero: float = 0.0  # share of prompts that never pass
    at_one: float = 0.0  # share of prompts that always pass

    @property
    def num_parameters(self) -> int:
        """Parameters that the fit used: two shapes, and each inflation that is there."""
        return 2 + (self.at_zero > 0) + (self.at_one > 0)

    def all_pass(self, size: int) -> float:
        """Chance that ``size`` samples of a prompt all pass; of the beta part it is B(a + size, b) / B(a, b)."""
        return float(self.chance_of(np.array(size), np.array(size)))

    def all_fail(self, size: int) -> float:
        """Chance that ``size`` samples of a prompt all fail; of the beta part it is B(a, b + size) / B(a, b)."""
        return float(self.chance_of(np.array(size), np.array(0)))

    def chances(self, num_samples: int) -> Array:
        """The distribution of counts: chance of each number c = 0 ... n of passing samples, [n + 1].

        >>> InflatedBeta(a=1.0, b=1.0, at_zero=0.2).chances(3).round(4).tolist()
        [0.4, 0.2, 0.2, 0.2]
        """
        return self.chance_of(np.array(num_samples), np.arange(num_samples + 1))

    def chance_of(self, n: Counts, c: Counts) -> Array:
        """Chance that c of n samples pass, [...]."""
        inner = np.exp(_log_beta_binomial(n, c, np.array(self.a), np.array(self.b)))
        chance = (1 - self.at_zero - self.at_one) * inner + self.at_zero * (c == 0) + self.at_one * (c == n)
        return np.asarray(chance, dtype=np.float64)


class GridMixture(Struct, frozen=True, kw_only=True):
    """Pass rates that take the values of a grid."""

    points: Array  # the grid, ascending from 0 to 1, [K]
    weights: Array  # their probabilities, [K]


def fit_inflated_beta(counts: PassCounts) -> InflatedBeta:
    """The zero-and-one-inflated beta-binomial of maximum likelihood, each inflation only where it earns its parameter.

    Of the four choices (no inflation, at 0, at 1, at both) the one with the least Bayesian information criterion is
    chosen (Schwarz 1978): -2 log likelihood + parameters times log J.

    >>> fitted = fit_inflated_beta(PassCounts.from_counts([4] * 5, [0, 1, 2, 3, 4]))
    >>> round(fitted.a, 2), round(fitted.b, 2), fitted.at_zero, fitted.at_one
    (1.0, 1.0, 0.0, 0.0)
    >>> round(fit_inflated_beta(PassCounts.from_counts([9] * 90, [0] * 50 + [3, 4, 5, 6] * 10)).at_zero, 2)
    0.55
    """
    fits = [_best_fit(counts, np.array(inflated)) for inflated in ((0, 0), (1, 0), (0, 1), (1, 1))]
    num_groups = float(counts.weight.sum())
    return min(fits, key=lambda fit: fit.num_parameters * np.log(num_groups) - 2 * _log_likelihood(counts, fit))


def fit_npmle(counts: PassCounts) -> GridMixture:
    """The distribution of pass rates of maximum likelihood among all distributions on a grid (Laird 1978), by EM.

    >>> fitted = fit_npmle(PassCounts.from_counts([200] * 4, [0, 0, 200, 200]))
    >>> round(float(fitted.weights[fitted.points <= 0.001].sum()), 2), round(float(fitted.weights[-1]), 2)
    (0.5, 0.5)
    """
    points = np.sin(np.linspace(0.0, np.pi / 2, NUM_POINTS)) ** 2
    n, c = counts.num_samples[:, None], counts.num_passing[:, None]
    # Relative to the most likely p of each pair, so that no likelihood of 1,000 samples underflows.
    log_likelihood = xlogy(c, points) + xlog1py(n - c, -points)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    share = counts.weight / counts.weight.sum()
    mass = np.full(NUM_POINTS, 1.0 / NUM_POINTS)
    for _ in range(NUM_UPDATES):
        mass = mass * ((share / (likelihood @ mass)) @ likelihood)
    return GridMixture(points=points, weights=mass)


def binomial_chances(num_samples: int, pass_rate: ArrayLike) -> Array:
    """The binomial distribution: chances of c = 0 ... n passing samples, [n + 1, ...], at one or several p, [...].

    >>> binomial_chances(2, 0.5).round(4).tolist()
    [0.25, 0.5, 0.25]
    """
    p = np.asarray(pass_rate, dtype=np.float64)
    c = np.arange(num_samples + 1).reshape(-1, *([1] * p.ndim))
    log_chance = _log_choose(np.full(c.shape, num_samples), c) + xlogy(c, p) + xlog1py(num_samples - c, -p)
    return np.asarray(np.exp(log_chance), dtype=np.float64)


def _best_fit(counts: PassCounts, inflated: Counts) -> InflatedBeta:
    """The fit of highest likelihood with inflation at 0 and at 1 where ``inflated``, [2], is 1: grid, then polish."""
    is_end = np.stack([counts.num_passing == 0, counts.num_passing == counts.num_samples])
    share = is_end @ counts.weight / counts.weight.sum()
    candidates = np.unique([(x, y) * inflated * share for x in _PARTS for y in _PARTS], axis=0)
    beta = np.stack(np.meshgrid(_MEANS, _CORRELATIONS, indexing="ij"), axis=-1).reshape(-1, 2)
    a, b = _shapes(beta.T)
    inner = np.exp(_log_beta_binomial(counts.num_samples, counts.num_passing, a[:, None], b[:, None]))

    def loss(logits: Array) -> float:
        return -_log_likelihood(counts, _from_logits(logits, inflated)) / float(counts.weight.sum())

    from scipy.optimize import minimize  # takes 0.13 s, and most commands fit nothing

    starts = []
    for ends in candidates:
        fit = np.log(np.maximum((1 - ends.sum()) * inner + ends @ is_end, _TINY)) @ counts.weight
        odds = np.log(np.maximum(ends, _TINY) / (1 - ends.sum()))
        starts.append((float(fit.max()), np.concatenate([beta[int(np.argmax(fit))], odds])))
    start = max(starts, key=lambda pair: pair[0])[1]
    bounds = [(_MEANS[0], _MEANS[-1]), (_CORRELATIONS[0], _CORRELATIONS[-1]), *[(-_FARTHEST, _FARTHEST)] * 2]
    start = np.clip(start, *np.transpose(bounds))
    # not L-BFGS-B: its steps of four numbers wait for every thread of BLAS, long where other work keeps the cores busy
    polished = minimize(loss, start, method="Nelder-Mead", bounds=bounds)
    return _from_logits(polished.x if polished.fun < loss(start) else start, inflated)


def _from_logits(logits: Array, inflated: Counts) -> InflatedBeta:
    """From logits of mean and correlation and log odds of both inflations against the rest, [4]."""
    a, b = _shapes(logits)
    odds = inflated * np.exp(logits[2:])
    at_zero, at_one = odds / (1.0 + odds.sum())
    return InflatedBeta(a=float(a), b=float(b), at_zero=float(at_zero), at_one=float(at_one))


def _log_likelihood(counts: PassCounts, fit: InflatedBeta) -> float:
    chance = fit.chance_of(counts.num_samples, counts.num_passing)
    return float(counts.weight @ np.log(np.maximum(chance, _TINY)))


def _shapes(logits: Array) -> tuple[Array, Array]:
    """Shapes a and b from the logits of the mean and of the intraclass correlation 1 / (a + b + 1)."""
    mean, correlation = expit(logits[0]), expit(logits[1])
    total = 1.0 / correlation - 1.0
    return mean * total, (1.0 - mean) * total


def _log_beta_binomial(n: Counts, c: Counts, a: Array, b: Array) -> Array:
    return np.asarray(_log_choose(n, c) + betaln(c + a, n - c + b) - betaln(a, b), dtype=np.float64)


def _log_choose(n: Counts, c: Counts) -> Array:
    return np.asarray(gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1), dtype=np.float64)


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


class RateBounds(Struct, frozen=True, kw_only=True):
    """The counts of a log, asked what they allow."""

    points: Array  # pass rates of the program, [K]
    chances: Array  # chance of each cell at each of them, [B, K]
    checked: Array  # chance of each cell at the points where g is checked, [B, many]
    expected: Array  # shares of the cells that the NPMLE expects, [B]
    cell: Counts  # the cell of each group, [J]
    prompts: Counts  # the prompt of each group, [J]

    @classmethod
    def from_counts(cls, num_samples: Counts, num_passing: Counts, prompts: Counts, fit: GridMixture) -> RateBounds:
        """Join n, c and prompts of groups, [J] each, to cells; ``fit`` is their NPMLE."""
        sizes, weights = np.unique(num_samples, return_counts=True)
        pairs = np.concatenate([np.column_stack([np.full(n + 1, n), np.arange(n + 1)]) for n in sizes.tolist()])
        labels, cell_of_pair = np.unique(_cell_of(*pairs.T), return_inverse=True)
        points = np.unique(np.concatenate([fit.points, _TAIL, 1 - _TAIL]))
        size_shares = dict(zip(sizes.tolist(), (weights / weights.sum()).tolist(), strict=True))

        def joined(rates: Array) -> Array:
            cells = np.zeros((len(labels), len(rates)))
            chances = np.concatenate([share * binomial_chances(n, rates) for n, share in size_shares.items()])
            np.add.at(cells, cell_of_pair, chances)
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

        ``share`` takes pass rates, [K], to what a prompt of each adds, in [0, 1], [K].
        """
        targets, checks = (np.asarray(share(p), dtype=np.float64) for p in (self.points, _CHECKED))
        low, high = -self._above(-targets, -checks), self._above(targets, checks)
        return max(low, 0.0), min(high, 1.0)

    def _above(self, targets: Array, checks: Array) -> float:
        """The upper bound of the mean of f over prompts."""
        from scipy.optimize import linprog  # takes 0.13 s, and most commands bound nothing

        num_cells, num_prompts = len(self.expected), int(self.prompts.max()) + 1
        # Half a prompt more in each cell: one that was never seen is not known to be empty.
        frequency = (self.expected * num_prompts + 0.5) / (num_prompts + num_cells / 2)
        price = SPREAD * np.sqrt(frequency * (1 - frequency) / num_prompts)
        # g = constant + up - down: a constant has no error and pays nothing.
        solved = linprog(
            np.concatenate([price + self.expected, price - self.expected, [1.0, -1.0]]),
            A_ub=np.column_stack([-self.chances.T, self.chances.T, -np.ones(len(targets)), np.ones(len(targets))]),
            b_ub=-targets,
            bounds=(0, None),
            method="highs",
        )
        positive, negative, constant = np.split(solved.x, [num_cells, 2 * num_cells])
        g = positive - negative + constant[0] - constant[1]
        g += max(0.0, float(np.max(checks - g @ self.checked)))
        values = g[self.cell]
        by_prompt = cluster_sums((values - values.mean())[:, None], self.prompts)[:, 0]
        observed = float(by_prompt @ by_prompt) / len(values) ** 2
        modelled = float(frequency @ (g - frequency @ g) ** 2) / len(values)
        error = np.sqrt(max(observed, modelled))
        return float(values.mean() + student_quantile(num_prompts - 1) * error)


def _cell_of(num_samples: Counts, num_passing: Counts) -> Counts:
    """A number for the cell of each count: 0 for none passing, the largest for all."""
    cell = np.ceil(2 / np.pi * np.arcsin(np.sqrt(num_passing / num_samples)) * NUM_CELLS)
    return np.where(num_passing == num_samples, NUM_CELLS + 1, cell).astype(np.int64)


MAX_EXTRAPOLATION = 8  # a forecast reaches this many times as far as the samples; hiding tested it up to 6.25 times
MIN_PROMPTS = 10  # with fewer prompts there is no distribution to speak of
MAX_INTERVAL_WIDTH = 0.6  # a wider interval of a share says nothing
MIN_FIT_P_VALUE = 0.05
"""Below this p-value of the goodness of fit the value of a forecast would be that of a shape that the counts refute."""


class PassRates(Struct, frozen=True, kw_only=True):
    """The fitted distribution of pass rates."""

    shape: InflatedBeta  # the fit that gives forecasts their value
    free: GridMixture  # the NPMLE
    bounds: RateBounds  # what gives them their interval
    num_prompts: int  # prompts, the independent units
    num_samples: int  # the median n, which bounds how far a forecast reaches
    goodness_of_fit: Estimate  # p-value of Pearson's chi-squared test of the shape

    def degeneracy(self, group_size: int) -> Estimate:
        """Forecast share of degenerate groups of a size; undefined where the data cannot support it."""
        value = self.shape.all_pass(group_size) + self.shape.all_fail(group_size)
        return self._forecast(f"G = {group_size}", group_size, value, lambda p: p**group_size + (1 - p) ** group_size)

    def pass_at_k(self, k: int) -> Estimate:
        """Forecast chance that at least one of k samples passes; undefined where the data cannot support it."""
        return self._forecast(f"k = {k}", k, 1.0 - self.shape.all_fail(k), lambda p: 1.0 - (1.0 - p) ** k)

    def pass_hat_k(self, k: int) -> Estimate:
        """Forecast chance that all k samples pass; undefined where the data cannot support it."""
        return self._forecast(f"k = {k}", k, self.shape.all_pass(k), lambda p: p**k)

    def _forecast(self, label: str, size: int, value: float, share: Callable[[Array], Array]) -> Estimate:
        reason, fit = None, self.goodness_of_fit.value
        if size > MAX_EXTRAPOLATION * self.num_samples:
            reason = f"{label} is more than {MAX_EXTRAPOLATION} times the {self.num_samples} samples of a prompt"
        elif fit is not None and fit < MIN_FIT_P_VALUE:
            reason = f"no inflated beta distribution of pass rates fits the counts (p = {fit:.2g})"
        if reason is not None:
            return Estimate.undefined_because(reason, num_units=self.num_prompts)
        low, high = self.bounds.interval(share)
        if high - low > MAX_INTERVAL_WIDTH:
            reason = f"a forecast at {label} could be anything from {low:.2f} to {high:.2f}"
            return Estimate.undefined_because(reason, num_units=self.num_prompts)
        return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=self.num_prompts)


def fit_pass_rates(num_samples: ArrayLike, num_passing: ArrayLike, prompts: ArrayLike | None = None) -> PassRates | str:
    """The distribution of pass rates, or the reason why these groups do not show one.

    Each group has n, c and its prompt, the independent unit, [J] each; None: each group is its own.

    >>> fit_pass_rates([4] * 3, [0, 1, 2])
    'a distribution of pass rates needs at least 10 prompts, there are 3'
    >>> rates = fit_pass_rates([4] * 50, [0, 1, 2, 3, 4] * 10)
    >>> round(rates.degeneracy(8).value, 3)
    0.222
    """
    counts = PassCounts.from_counts(num_samples, num_passing)
    labels = np.arange(len(counts.pair)) if prompts is None else cluster_numbers(prompts)
    num_prompts = int(labels.max()) + 1
    if num_prompts < MIN_PROMPTS:
        return f"a distribution of pass rates needs at least {MIN_PROMPTS} prompts, there are {num_prompts}"
    if np.all((counts.num_passing == 0) | (counts.num_passing == counts.num_samples)):
        return "no group is mixed, so nothing shows how often a hard prompt passes or an easy one fails"
    shape, free = fit_inflated_beta(counts), fit_npmle(counts)
    n, c = (np.asarray(numbers, dtype=np.int64) for numbers in (num_samples, num_passing))
    return PassRates(
        shape=shape,
        free=free,
        bounds=RateBounds.from_counts(n, c, labels, free),
        num_prompts=num_prompts,
        num_samples=int(np.median(n)),
        goodness_of_fit=goodness_of_fit(counts, shape, num_prompts),
    )


def goodness_of_fit(counts: PassCounts, shape: InflatedBeta, num_prompts: int) -> Estimate:
    """p-value of Pearson's chi-squared test of the inflated beta-binomial: a small one speaks against it.

    Neighboring cells are joined until each is expected to hold five; undefined where too few are left. Groups of one
    prompt are not independent: counts are scaled down to the number of prompts.

    >>> counts = PassCounts.from_counts([4] * 100, [0, 1, 2, 3, 4] * 20)
    >>> round(goodness_of_fit(counts, fit_inflated_beta(counts), 100).value, 2)
    1.0
    """
    num_groups = int(counts.weight.sum())
    sizes = np.unique(counts.num_samples).tolist()
    statistic, cells = 0.0, 0
    for size in sizes:
        rows = counts.num_samples == size
        observed = np.zeros(size + 1)
        observed[counts.num_passing[rows]] = counts.weight[rows] * num_prompts / num_groups
        joined = _joined(observed, observed.sum() * shape.chances(size))
        statistic += float(np.sum((joined[:, 0] - joined[:, 1]) ** 2 / joined[:, 1]))
        cells += len(joined)
    freedom = cells - len(sizes) - shape.num_parameters
    if freedom < 1:
        reason = (
            f"{num_prompts} prompts fill {cells} cells of five, too few to test a shape with {shape.num_parameters} "
            "parameters"
        )
        return Estimate.undefined_because(reason, num_units=num_prompts)
    return Estimate.exact(float(chdtrc(freedom, statistic)), num_units=num_prompts)


def _joined(observed: Array, expected: Array) -> Array:
    """Neighboring cells joined until five are expected in each, [cells, 2]."""
    cells: list[list[float]] = [[0.0, 0.0]]
    for count, mean in zip(observed.tolist(), expected.tolist(), strict=True):
        if cells[-1][1] >= 5.0:
            cells.append([0.0, 0.0])
        cells[-1][0] += count
        cells[-1][1] += mean
    if len(cells) > 1 and cells[-1][1] < 5.0:
        count, mean = cells.pop()
        cells[-1][0] += count
        cells[-1][1] += mean
    return np.array(cells)
