"""pass@k and pass^k without bias, from n samples a prompt of which c are correct.

Where k exceeds n there is no unbiased estimate. The reference code of HumanEval then returns 1.0 (its test n - c < k
is also true there); here the function refuses and the estimate carries the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.draws import frac_draws_all
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_means

Array = NDArray[np.float64]


def pass_at_k(num_samples: ArrayLike, num_correct: ArrayLike, k: int) -> Array:
    """Chance that at least one of k samples is correct: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, equation 1).

    Args:
        num_samples: n of each prompt, [...].
        num_correct: c of each prompt, [...].
        k: The budget, at most the smallest n.

    Returns:
        One unbiased estimate a prompt, [...].

    Example:
        >>> pass_at_k([4, 4, 4], [0, 1, 4], 2).tolist()
        [0.0, 0.5, 1.0]
    """
    return 1.0 - frac_draws_all(num_samples, np.asarray(num_samples) - np.asarray(num_correct), k)


def pass_hat_k(num_samples: ArrayLike, num_correct: ArrayLike, k: int) -> Array:
    """Chance that all k samples are correct, pass^k: C(c, k) / C(n, k) (Yao et al. 2024, tau-bench).

    Args:
        num_samples: n of each prompt, [...].
        num_correct: c of each prompt, [...].
        k: The budget, at most the smallest n.

    Returns:
        One unbiased estimate a prompt, [...].

    Example:
        >>> pass_hat_k([4, 4, 4], [0, 3, 4], 2).tolist()
        [0.0, 0.5, 1.0]
    """
    return frac_draws_all(num_samples, num_correct, k)


def why_k_too_large(num_samples: ArrayLike, k: int) -> str | None:
    """Why there is no unbiased estimate at k.

    Args:
        num_samples: n of each prompt, [P].
        k: The budget or group size.

    Returns:
        The reason in words; None where every prompt has k samples.

    Example:
        >>> why_k_too_large([4, 4], 8)
        'k = 8 exceeds the 4 samples of a prompt'
        >>> why_k_too_large([4, 16, 16], 8)
        'k = 8 exceeds the samples of 1 of 3 prompts (fewest 4)'
    """
    n = np.asarray(num_samples)
    short = int(np.sum(n < k))
    if not short:
        return None
    if short == len(n) and n.min() == n.max():
        return f"k = {k} exceeds the {int(n.min())} samples of a prompt"
    return f"k = {k} exceeds the samples of {short} of {len(n)} prompts (fewest {int(n.min())})"


def estimate_pass_at_k(
    num_samples: ArrayLike, num_correct: ArrayLike, k: int, *, num_resamples: int = 2000, seed: int = 0
) -> Estimate:
    """pass@k: the mean of :func:`pass_at_k` over prompts, with an interval by resampling prompts.

    Args:
        num_samples: n of each prompt, [P].
        num_correct: c of each prompt, [P].
        k: The budget.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        The estimate; undefined where k exceeds the samples of a prompt.

    Example:
        >>> estimate_pass_at_k([4, 4], [0, 1], 2).value
        0.25
        >>> estimate_pass_at_k([1], [0], 10).undefined
        'k = 10 exceeds the 1 samples of a prompt'
    """
    n = np.asarray(num_samples)
    if not len(n):
        return Estimate.undefined_because("there are no prompts")
    reason = why_k_too_large(n, k)
    if reason is not None:
        return Estimate.undefined_because(reason, num_units=len(n))
    return bootstrap_mean(pass_at_k(n, num_correct, k), num_resamples=num_resamples, seed=seed)


def estimate_pass_table(
    num_samples: ArrayLike, num_correct: ArrayLike, ks: Sequence[int], *, num_resamples: int = 2000, seed: int = 0
) -> list[tuple[Estimate, Estimate]]:
    """pass@k and pass^k at several k from the same resamples.

    Args:
        num_samples: n of each prompt, [P].
        num_correct: c of each prompt, [P].
        ks: The budgets.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        For each k: pass@k and pass^k; both undefined where k exceeds the samples of a prompt.

    Example:
        >>> [(at.value, hat.value) for at, hat in estimate_pass_table([2, 2], [1, 2], [1, 2])]
        [(0.75, 0.75), (1.0, 0.5)]
    """
    n, c = np.asarray(num_samples), np.asarray(num_correct)
    reasons = {k: why_k_too_large(n, k) if len(n) else "there are no prompts" for k in ks}
    known = [k for k in ks if reasons[k] is None]
    columns = [function(n, c, k) for k in known for function in (pass_at_k, pass_hat_k)]
    means = iter(bootstrap_means(np.column_stack(columns), num_resamples=num_resamples, seed=seed) if columns else ())
    table = []
    for k in ks:
        reason = reasons[k]
        if reason is None:
            table.append((next(means), next(means)))
        else:
            undefined = Estimate.undefined_because(reason, num_units=len(n))
            table.append((undefined, undefined))
    return table
