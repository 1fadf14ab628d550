"""The one combinatorial number behind pass@k, pass^k and unbiased degeneracy: all draws are of one kind.

Legend: n samples of a prompt, c of them of the kind asked for, k drawn without replacement.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def frac_draws_all(num_samples: ArrayLike, num_marked: ArrayLike, k: int) -> Array:
    """C(c, k) / C(n, k): the share of all k-element draws that take only marked samples.

    Computed as the product of (c - i) / (n - i), whose factors all lie in [0, 1]: no factorial overflows and nothing
    cancels, so n in the thousands keeps 13 digits.

    Args:
        num_samples: n, [...].
        num_marked: c, [...], from 0 to n.
        k: Number of draws, from 0 to the smallest n.

    Returns:
        Shares, [...].

    Raises:
        ValueError: A count is impossible or k exceeds a prompt's samples.

    Example:
        >>> frac_draws_all([4, 4], [3, 4], 2).tolist()
        [0.5, 1.0]
    """
    n, c = np.broadcast_arrays(np.asarray(num_samples), np.asarray(num_marked))
    if np.any(c < 0) or np.any(c > n):
        raise ValueError("the number of marked samples lies between 0 and the number of samples")
    if k < 0:
        raise ValueError(f"the number of draws is at least 0, got {k}")
    if np.any(n < k):
        raise ValueError(f"k = {k} draws need at least {k} samples, the fewest are {int(n.min())}")
    share = np.ones(n.shape)
    for drawn in range(k):
        share *= np.maximum(c - drawn, 0) / (n - drawn)
    return share
