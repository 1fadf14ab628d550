"""Whether a prompt whose group was dead is dead again when it comes back.

Where training makes all prompts easier, or harder, together, groups after a dead one are of other steps than groups
after a live one, and so differ for prompts that are all alike. The excess therefore compares returns of one step with
each other, and adds the steps up (Mantel and Haenszel 1959).

Shapes: J groups, V pairs of consecutive visits of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_statistics
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.metrics.uncertainty.level import student_quantile
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.metrics.uncertainty.studentized import influence_values

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_NO_RETURN = "no prompt comes back"
_ALL_ALIKE = "no step has returns after a dead group and after a live one"
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """Dead groups at the next visit of their prompts."""

    after_dead: Estimate
    """Share of dead groups whose prompt is dead at its next visit too."""
    after_live: Estimate
    """The same of live groups."""
    excess: Estimate
    """The first minus the second, among the returns of one step; mean over steps, weighed by how many there are of
    either kind."""
    num_returns: int
    """Pairs of consecutive visits, V."""


def dead_persistence(step: ArrayLike, prompt: ArrayLike, dead: ArrayLike, *, resampling: Resampling) -> Persistence:
    """How much likelier a group is dead where its prompt was dead the last time; intervals resample prompts.

    Args:
        step: The step of each group, [J]. Two groups of a prompt at one step are one visit: the later one is looked at.
        prompt: Its prompt, [J].
        dead: Whether its rewards are all equal, [J].

    Returns:
        The shares and the excess; each undefined where there is nothing that it could be told from.

    Example:
        >>> steps, prompts = [1, 1, 2, 2] * 6, [f"{place // 4}{place % 2}" for place in range(24)]
        >>> found = dead_persistence(steps, prompts, [True, False] * 12, resampling=Resampling(num_resamples=50))
        >>> found.after_dead.value, found.after_live.value, found.num_returns
        (1.0, 0.0, 12)
    """
    times, (names, index) = np.asarray(step), np.unique(np.asarray(prompt), return_inverse=True)
    order = np.lexsort((times, index.reshape(-1)))
    owner, when, is_dead = index.reshape(-1)[order], times[order], np.asarray(dead, dtype=bool)[order]
    last_of_visit = np.append((owner[:-1] != owner[1:]) | (when[:-1] != when[1:]), True)
    owner, when, is_dead = owner[last_of_visit], when[last_of_visit], is_dead[last_of_visit]
    comes_back = owner[:-1] == owner[1:]
    before, after = is_dead[:-1][comes_back], is_dead[1:][comes_back]
    who, at = owner[:-1][comes_back], when[1:][comes_back]
    if not len(who):
        none = Estimate.undefined_because(_NO_RETURN, num_units=len(names))
        return Persistence(after_dead=none, after_live=none, excess=none, num_returns=0)
    return Persistence(
        after_dead=_share(after, who, before, "alive", resampling),
        after_live=_share(after, who, ~before, "dead", resampling),
        excess=_excess(before, after, who, at, resampling),
        num_returns=len(who),
    )


def _share(after: Bools, who: Ints, chosen: Bools, others: str, resampling: Resampling) -> Estimate:
    """Of the chosen returns, those that are dead."""
    if not chosen.any():
        return Estimate.undefined_because(f"every group before a return is {others}", num_units=len(np.unique(who)))
    return bootstrap_mean(after[chosen], who[chosen], resampling=resampling)


def _excess(before: Bools, after: Bools, who: Ints, at: Ints, resampling: Resampling) -> Estimate:
    """By step n1 n0 / n (p1 - p0), summed over sum n1 n0 / n: the slope of ``after`` on ``before`` within steps."""
    _, place = np.unique(at, return_inverse=True)
    num = np.bincount(place)
    was, is_now = (flags - (np.bincount(place, flags) / num)[place] for flags in (before, after))
    if not np.any(was):
        return Estimate.undefined_because(_ALL_ALIKE, num_units=len(np.unique(who)))
    units = cluster_sums(np.column_stack([was * is_now, was**2]), who)
    units = units[units[:, 1] > 0]
    floor = _NOTHING * units[:, 1].sum()  # a resample may hold no prompt that tells the two apart

    def slope(sums: Array) -> Array:
        return np.asarray(sums[..., :1] / np.maximum(sums[..., 1:], floor), dtype=np.float64)

    (excess,) = bootstrap_statistics(slope, units, within=(-1.0, 1.0), resampling=resampling)
    if excess.value is None or excess.interval is None:
        return excess
    # a dozen prompts of which few are ever alive: the studentized quantiles are too near
    error = float(np.sqrt(np.sum(influence_values(slope, units) ** 2) / (len(units) * (len(units) - 1))))
    half = student_quantile(len(units) - 1) * error
    low, high = min(excess.ends[0], excess.value - half), max(excess.ends[1], excess.value + half)
    return replace(excess, low=low, high=high).within(-1.0, 1.0)
