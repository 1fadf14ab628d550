"""Two policies on the prompts that both were asked: at which budget does which find more?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.passk.reach_verdict import judge_reach, verifier_caution
from gradscope.diagnostics.passk.samples import Samples
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import (
    CompressionFactor,
    Counts,
    compression_factors,
    least_sharpening,
    pass_at_k,
    why_k_too_large,
)
from gradscope.metrics.uncertainty.bootstrap import bootstrap_difference, bootstrap_means
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.passk import PassAtKComparison, PassAtKDifference, Solved

_EQUAL = 1e-12
"""Two estimates of one prompt closer than this are a tie: they are sums of the same fractions."""


def compare_samples(first: Samples, second: Samples, ks: Sequence[int], *, resampling: Resampling) -> PassAtKComparison:
    """Second against first, paired by prompt, at the budgets ``ks``, ascending.

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
    rows = _rows(before, after, ks, resampling=resampling)
    known = [row.k for row in rows if row.difference.is_defined]
    won, lost, unsolved = _at_largest(before, after, known, resampling=resampling)
    sharpening = least_sharpening(before, after, resampling=resampling)
    verdict, evidence = judge_reach(rows, won=won, lost=lost, unsolved=unsolved, least_sharpening=sharpening)
    return PassAtKComparison(
        first=first.name,
        second=second.name,
        num_prompts=len(pairs),
        num_unpaired=len(first.prompts) + len(second.prompts) - 2 * len(pairs),
        rows=rows,
        crossover_k=crossover_k(rows),
        solved=_solved(before[1] > 0, after[1] > 0),
        frac_won=won,
        frac_lost=lost,
        least_sharpening=sharpening,
        verdict=verdict,
        evidence=evidence,
        verifier=verifier_caution(
            (unsolved.value or 0.0, 1 - float(pass_at_k(*after, known[-1]).mean())), known[-1], len(pairs)
        )
        if known
        else "",
    )


def crossover_k(rows: Sequence[PassAtKDifference]) -> int | None:
    """The smallest k whose difference has the opposite sign of the first defined one; None where it never turns."""
    signs = [(row.k, float(np.sign(row.difference.value))) for row in rows if row.difference.value is not None]
    if not signs or signs[0][1] == 0.0:
        return None
    return next((k for k, sign in signs if sign == -signs[0][1]), None)


def _rows(first: Counts, second: Counts, ks: Sequence[int], *, resampling: Resampling) -> tuple[PassAtKDifference, ...]:
    factors = compression_factors(first, second, ks)
    return tuple(
        _difference(first, second, k, factor, resampling=resampling) for k, factor in zip(ks, factors, strict=True)
    )


def _difference(
    first: Counts, second: Counts, k: int, factor: CompressionFactor, *, resampling: Resampling
) -> PassAtKDifference:
    reason = why_k_too_large(first[0], k) or why_k_too_large(second[0], k)
    if reason is None:
        before, after = pass_at_k(*first, k), pass_at_k(*second, k)
        gain, difference = after - before, bootstrap_difference(before, after, resampling=resampling)
    else:
        gain, difference = np.zeros(0), Estimate.undefined_because(reason, num_units=len(first[0]))
    return PassAtKDifference(
        k=k,
        difference=difference,
        first_wins=int(np.sum(gain < -_EQUAL)),
        second_wins=int(np.sum(gain > _EQUAL)),
        ties=int(np.sum(np.abs(gain) <= _EQUAL)),
        compression_factor=factor.factor,
        compression_at_least=factor.at_least,
    )


def _at_largest(
    first: Counts, second: Counts, known: Sequence[int], *, resampling: Resampling
) -> tuple[Estimate, Estimate, Estimate]:
    """What is gained, what is lost and what the first leaves unsolved at the largest budget that both have."""
    if not known:
        undefined = Estimate.undefined_because("the two have no budget in common", num_units=len(first[0]))
        return undefined, undefined, undefined
    before = pass_at_k(*first, known[-1])
    gain = pass_at_k(*second, known[-1]) - before
    columns = np.column_stack([np.maximum(gain, 0.0), np.maximum(-gain, 0.0), 1 - before])
    won, lost, unsolved = bootstrap_means(columns, resampling=resampling)
    return won, lost, unsolved


def _solved(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Solved:
    return Solved(
        both=int(np.sum(first & second)),
        first_only=int(np.sum(first & ~second)),
        second_only=int(np.sum(~first & second)),
        neither=int(np.sum(~first & ~second)),
    )
