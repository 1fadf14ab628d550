"""Two policies on the prompts that both were asked: at which budget does which find more?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.passk.reach_verdict import judge_reach
from gradscope.diagnostics.passk.samples import Samples
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import pass_at_k, why_k_too_large
from gradscope.metrics.uncertainty.bootstrap import bootstrap_difference
from gradscope.results.passk import PassAtKComparison, PassAtKDifference, Solved

_Counts = tuple[NDArray[np.int64], NDArray[np.int64]]
_EQUAL = 1e-12
"""Two estimates of one prompt closer than this are a tie: they are sums of the same fractions."""


def compare_samples(
    first: Samples, second: Samples, ks: Sequence[int], *, num_resamples: int, seed: int
) -> PassAtKComparison:
    """Second against first, paired by prompt.

    Args:
        first: Samples of one policy.
        second: Samples of another.
        ks: The budgets, ascending.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        The comparison.

    Raises:
        InputError: The two have no prompt in common.
    """
    where = {prompt: row for row, prompt in enumerate(second.prompts)}
    pairs = [(row, where[prompt]) for row, prompt in enumerate(first.prompts) if prompt in where]
    if not pairs:
        raise InputError(
            f"{first.source.path} and {second.source.path} have no prompt in common: the first has prompt "
            f"{first.prompts[0]!r}, the second {second.prompts[0]!r}.",
            hint="Give two files with samples of the same prompts under the same ids (--prompt-column names the "
            "column), or look at them one by one.",
        )
    rows_first, rows_second = (np.array(rows, dtype=np.int64) for rows in zip(*pairs, strict=True))
    before = (first.num_samples[rows_first], first.num_correct[rows_first])
    after = (second.num_samples[rows_second], second.num_correct[rows_second])
    rows = tuple(_difference(before, after, k, num_resamples=num_resamples, seed=seed) for k in ks)
    verdict, evidence = judge_reach(rows, ceiling=_ceiling(before, rows))
    return PassAtKComparison(
        first=first.name,
        second=second.name,
        num_prompts=len(pairs),
        num_unpaired=len(first.prompts) + len(second.prompts) - 2 * len(pairs),
        rows=rows,
        crossover_k=crossover_k(rows),
        solved=_solved(before[1] > 0, after[1] > 0),
        verdict=verdict,
        evidence=evidence,
    )


def crossover_k(rows: Sequence[PassAtKDifference]) -> int | None:
    """The smallest k at which the sign of the difference is the opposite of that at the smallest k.

    Args:
        rows: Differences, ascending by k; undefined ones are passed over.

    Returns:
        That k; None where the sign never changes or the first difference is zero.
    """
    signs = [(row.k, float(np.sign(row.difference.value))) for row in rows if row.difference.value is not None]
    if not signs or signs[0][1] == 0.0:
        return None
    return next((k for k, sign in signs if sign == -signs[0][1]), None)


def _ceiling(first: _Counts, rows: Sequence[PassAtKDifference]) -> float:
    """pass@k of the first policy at the largest budget that both have."""
    known = [row.k for row in rows if row.difference.is_defined]
    return float(pass_at_k(*first, known[-1]).mean()) if known else 0.0


def _difference(first: _Counts, second: _Counts, k: int, *, num_resamples: int, seed: int) -> PassAtKDifference:
    reason = why_k_too_large(first[0], k) or why_k_too_large(second[0], k)
    if reason is not None:
        undefined = Estimate.undefined_because(reason, num_units=len(first[0]))
        return PassAtKDifference(k=k, difference=undefined, first_wins=0, second_wins=0, ties=0)
    before, after = pass_at_k(*first, k), pass_at_k(*second, k)
    gain = after - before
    return PassAtKDifference(
        k=k,
        difference=bootstrap_difference(before, after, num_resamples=num_resamples, seed=seed),
        first_wins=int(np.sum(gain < -_EQUAL)),
        second_wins=int(np.sum(gain > _EQUAL)),
        ties=int(np.sum(np.abs(gain) <= _EQUAL)),
    )


def _solved(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Solved:
    return Solved(
        both=int(np.sum(first & second)),
        first_only=int(np.sum(first & ~second)),
        second_only=int(np.sum(~first & second)),
        neither=int(np.sum(~first & ~second)),
    )
