"""Every advantage formulation by name: the one list that training, rank and degeneracy choose from.

A new formulation is one function and one row here. Those of this list need only the rewards of the group.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.advantages import fixed, group
from gradscope.errors import UsageError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """One way to turn the rewards of a group into advantages."""

    name: str
    """The name in ``--advantage``, JSON and tables."""
    formula: str
    """How it is computed, in one line of plain text."""
    source: str
    """The paper or program that the formula is from."""
    needs_binary: bool
    """Whether it is defined for rewards of 0 and 1 only."""
    min_group_size: int
    """Fewest rollouts of a group that it is defined for."""
    zero_sum: bool
    """Whether the advantages of every group sum to zero."""
    function: Callable[[Array], Array]
    """From rewards [..., G] to advantages [..., G]."""

    def why_not(self, rewards: ArrayLike) -> str | None:
        """Why these rewards have no such advantage.

        Args:
            rewards: Finite rewards, [..., G].

        Returns:
            The reason in words; None where they have one.
        """
        values = np.asarray(rewards, dtype=np.float64)
        if values.shape[-1] < self.min_group_size:
            return f"{self.name} needs groups of at least {self.min_group_size}, this one has {values.shape[-1]}"
        other = values[(values != 0.0) & (values != 1.0)]
        if self.needs_binary and len(other):
            return f"{self.name} is defined for rewards of 0 and 1, and there is a reward of {other[0]:g}"
        return None


_DRGRPO_PAPER = "Liu et al. 2025, Understanding R1-Zero-like training (Dr. GRPO), arXiv 2503.20783."
_PSR_PAPER = "Zhu et al. 2025, The surprising effectiveness of negative reinforcement, arXiv 2506.01347"

_ENTRIES: tuple[Formulation, ...] = (
    Formulation(
        name="grpo",
        formula="(r - mean(r)) / (std(r) + 1e-4), std with G - 1",
        source="Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300); epsilon and ddof as in TRL's GRPOTrainer.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=True,
        function=group.grpo,
    ),
    Formulation(
        name="dr_grpo",
        formula="r - mean(r)",
        source=_DRGRPO_PAPER,
        needs_binary=False,
        min_group_size=1,
        zero_sum=True,
        function=group.dr_grpo,
    ),
    Formulation(
        name="rloo",
        formula="r_i - mean of the other G - 1 rewards",
        source="Ahmadian et al. 2024 (Back to basics), arXiv 2402.14740.",
        needs_binary=False,
        min_group_size=2,
        zero_sum=True,
        function=group.rloo,
    ),
    Formulation(
        name="reinforce",
        formula="r",
        source="Williams 1992, without a baseline.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        function=fixed.reinforce,
    ),
    Formulation(
        name="sign",
        formula="2 r - 1",
        source="The reward as +1 or -1, without a baseline.",
        needs_binary=True,
        min_group_size=1,
        zero_sum=False,
        function=fixed.sign,
    ),
    Formulation(
        name="positive_only",
        formula="1 if r = 1 else 0",
        source=f"{_PSR_PAPER} (PSR).",
        needs_binary=True,
        min_group_size=1,
        zero_sum=False,
        function=fixed.positive_only,
    ),
    Formulation(
        name="negative_only",
        formula="0 if r = 1 else -1",
        source=f"{_PSR_PAPER} (NSR).",
        needs_binary=True,
        min_group_size=1,
        zero_sum=False,
        function=fixed.negative_only,
    ),
    Formulation(
        name="tasa",
        formula="1/n_pos if r = 1 else -1/n_neg",
        source="As stated; no publication is known to us.",
        needs_binary=True,
        min_group_size=1,
        zero_sum=False,
        function=fixed.tasa,
    ),
    Formulation(
        name="max_rl",
        formula="(r - mean(r)) / mean(r), 0 where mean(r) <= 0",
        source="Maximum-likelihood RL, arXiv 2602.02710; the zero as in prime-rl.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=True,
        function=group.max_rl,
    ),
)

FORMULATIONS: dict[str, Formulation] = {entry.name: entry for entry in _ENTRIES}


def formulation(name: str) -> Formulation:
    """A formulation by its name.

    Args:
        name: The formulation's name.

    Returns:
        Its entry.

    Raises:
        UsageError: There is no such formulation; the hint names the nearest ones.

    Example:
        >>> formulation("dr_grpo").formula
        'r - mean(r)'
    """
    if name in FORMULATIONS:
        return FORMULATIONS[name]
    near = difflib.get_close_matches(name, FORMULATIONS, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else f"There are: {', '.join(FORMULATIONS)}."
    raise UsageError(f"There is no advantage formulation {name!r}.", hint=hint)


def compute_advantages(name: str, rewards: ArrayLike) -> Array:
    """The advantages of a group, or of several groups of one size.

    Args:
        name: The formulation's name.
        rewards: Finite rewards, [..., G]; several reward functions are already one weighted sum.

    Returns:
        Advantages in float64, [..., G]; TRL's float32 differs by about 1e-7.

    Raises:
        UsageError: There is no such formulation, or these rewards have no such advantage.
        ValueError: There is no reward, or one is not finite.

    Example:
        >>> compute_advantages("rloo", [1.0, 0.0, 0.0]).tolist()
        [1.0, -0.5, -0.5]
    """
    chosen = formulation(name)
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim < 1 or values.shape[-1] < 1 or not np.all(np.isfinite(values)):
        raise ValueError("advantages need at least one reward, and all of them finite")
    reason = chosen.why_not(values)
    if reason is not None:
        raise UsageError(
            f"These rewards have no {name!r} advantage: {reason}.",
            hint="'grpo', 'dr_grpo' and 'reinforce' are defined for any reward.",
        )
    return chosen.function(values)
