"""When a recomputed norm is the logged one."""

from __future__ import annotations

GRAD_NORM_TOLERANCE = 1e-5
"""Float32 arithmetic in another order gives 1e-7; the smallest real discrepancy seen gives 1e-4."""
ROUNDING_FLOOR = 1e-6
"""Below this share of the score vectors' Frobenius norm a norm is rounding, of log-probabilities that float32 keeps to
2e-7: it matches zero."""

NEAR = 100.0
"""So many tolerances off, a norm may still be the logged one in float32: the step's own rounding decides."""


def meets_logged(norm: float, logged: float, floor: float = 0.0) -> bool:
    """Whether two norms differ by no more than rounding in float32.

    Args:
        floor: What is rounding whatever the norms are.

    Returns:
        True within :data:`GRAD_NORM_TOLERANCE`, relative to the logged one, or within the floor.

    Example:
        >>> meets_logged(2.00001, 2.0), meets_logged(2.0002, 2.0), meets_logged(3e-9, 0.0, floor=1e-8)
        (True, False, True)
    """
    return abs(norm - logged) <= max(GRAD_NORM_TOLERANCE * abs(logged), floor)
