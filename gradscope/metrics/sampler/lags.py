"""How far the weights that sampled were behind those that were updated, in updates.

Legend: R rollouts. A rollout of update N whose first token was sampled by weights after v updates has lag N - 1 - v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling


def first_step(steps: Sequence[int], last_versions: Sequence[int]) -> int | None:
    """From which number a log counts its steps, as the versions of its weights tell: no weights come from the future.

    Args:
        steps: The step of each rollout, [R].
        last_versions: How many updates the weights had had that sampled its last token, [R].

    Returns:
        1, or 0 where a step 0 occurs or step N was sampled after N updates; None where neither explains the versions.

    Example:
        >>> first_step([1, 2], [0, 1]), first_step([4, 5], [4, 3]), first_step([1], [7])
        (1, 0, None)
    """
    ahead = max((version - step for step, version in zip(steps, last_versions, strict=True)), default=-1)
    if ahead > 0:
        return None
    return 0 if ahead == 0 or 0 in steps else 1


def lag_estimates(lags: ArrayLike, prompts: ArrayLike, *, resampling: Resampling = RESAMPLING) -> dict[str, Estimate]:
    """What the lags of some rollouts are like.

    Args:
        lags: Updates, [R].
        prompts: The prompt of each rollout, numbers or strings, the unit of resampling, [R].
        resampling: How often, and from which seed.

    Returns:
        ``mean_lag``, ``max_lag`` without an interval, and ``frac_above_1``; undefined without a rollout.

    Example:
        >>> {name: found.value for name, found in lag_estimates([0, 2, 1], ["a", "b", "c"]).items()}
        {'mean_lag': 1.0, 'max_lag': 2.0, 'frac_above_1': 0.3333333333333333}
    """
    values = np.asarray(lags, dtype=np.float64)
    largest = (
        Estimate.exact(values.max(), num_units=len(values))
        if len(values)
        else Estimate.undefined_because("there is nothing to compare")
    )
    mean = bootstrap_mean(values, prompts, share=False, resampling=resampling)
    return {
        "mean_lag": mean.within(0.0, math.inf),
        "max_lag": largest,
        "frac_above_1": bootstrap_mean(values > 1, prompts, resampling=resampling),
    }
