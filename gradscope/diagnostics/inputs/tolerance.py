"""When a recomputed norm is the logged one."""

from __future__ import annotations

GRAD_NORM_TOLERANCE = 1e-5
"""Float32 arithmetic in another order gives 1e-7; the smallest real discrepancy seen gives 1e-4."""


def meets_logged(norm: float, logged: float) -> bool:
    """Whether two norms differ by no more than rounding in float32.

    Returns:
        True within :data:`GRAD_NORM_TOLERANCE`, relative to the logged one.

    Example:
        >>> meets_logged(2.00001, 2.0), meets_logged(2.0002, 2.0)
        (True, False)
    """
    return abs(norm - logged) <= GRAD_NORM_TOLERANCE * abs(logged)
