"""Every advantage formulation by name: the one list that training, rank and degeneracy choose from.

A new formulation is one function and one row here. What a formulation needs is its ``scope``: the rewards of a group,
those of the whole step, what the run remembers, something of every token, or a Gram matrix. The first two are functions
of rewards and can be asked "what if" of any log; those of the run and of tokens exist while a run is trained
(:mod:`gradscope.advantages.online`), the last where `rank` has the matrix (:mod:`gradscope.advantages.gram`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.advantages import fixed, group, step
from gradscope.advantages.formulation import Formulation
from gradscope.errors import UsageError

Array = NDArray[np.float64]

LOGGED = "logged"
"""The name of the advantage that the optimizer saw."""

_DRGRPO_PAPER = "Liu et al. 2025, Understanding R1-Zero-like training (Dr. GRPO), arXiv 2503.20783."
_STARVATION_PAPER = "Nie et al. 2026, Gradient starvation in binary-reward GRPO, arXiv 2605.07689."
_SUMMARY = "The research summary that this project started from; no publication of it is known to us."
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
        source=_STARVATION_PAPER,
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
        formula="G/n_pos if r = 1 else -G/n_neg",
        source="Name and weights by class are those of the request that this project started from; no publication of "
        "it is known to us.",
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
    Formulation(
        name="grpo_negative",
        formula="grpo, and -1 for every rollout of a group without a success",
        source="After NGRPO (Nan et al. 2025, arXiv 2509.18851), which gives such groups a negative advantage by a "
        "virtual success; the constant is ours.",
        needs_binary=True,
        min_group_size=1,
        zero_sum=False,
        function=group.grpo_negative,
    ),
    *(
        Formulation(
            name=f"pass_at_{k}",
            formula=f"{k} if r = 1 else {k} (1 - C(G-1-c, {k - 1}) / C(G-1, {k - 1})), c passes in the group",
            source=f"Walder and Karkhanis 2025 (PKPO), arXiv 2505.15201, for k = {k} without a baseline.",
            needs_binary=True,
            min_group_size=k,
            zero_sum=False,
            function=group.pass_weights(k),
        )
        for k in (2, 4)
    ),
    Formulation(
        name="batch_mean",
        formula="r - mean of all rewards of the step",
        source="Williams 1992 with the step's mean as baseline; REINFORCE++ (Hu 2025, arXiv 2501.03262) also divides "
        "by the step's std.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        scope="step",
        function=step.batch_mean,
    ),
    Formulation(
        name="shrinkage",
        formula="r - (1 - l) mean of the other G - 1 rewards - l mean of the other groups, l = (N-1)/N v/(v+s)",
        source="Zeng et al. 2025 (Shrinkage baselines), arXiv 2511.03710, equations 10 and 13 to 16.",
        needs_binary=False,
        min_group_size=2,
        zero_sum=False,
        scope="step",
        function=step.shrinkage,
    ),
    Formulation(
        name="spo",
        formula="r - b, b the prompt's running mean before this visit: b <- (b + mean(r)) / 2, first the step's mean",
        source="After Xu and Ding 2025 (Single-stream policy optimization), arXiv 2509.13232, with a plain "
        "exponential average for their adaptive tracker and without their scaling by the batch.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        scope="run",
    ),
    Formulation(
        name="per_step",
        formula="R_t - mean over the group of R_t, R_t the sum of the token rewards from token t on",
        source="REINFORCE with causality (Williams 1992) on rewards of single steps; DeepSeekMath (arXiv 2402.03300, "
        "section 4.1.3) scales each step's reward first.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        scope="token",
    ),
    Formulation(
        name="compensation",
        formula="grpo x (2 - p_t/p_max), p_max the probability of the most likely token there",
        source=_SUMMARY,
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        scope="token",
    ),
    Formulation(
        name="compensation_clipped",
        formula="grpo x min(2 - p_t/p_max, 1.5)",
        source=f"{_SUMMARY} The limit is ours.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        scope="token",
    ),
    Formulation(
        name="token_critic",
        formula="grpo + b_t, b a linear head on the policy's hidden state at token t, trained on -grpo x b_t",
        source=f"{_SUMMARY} The head's form and its start at zero are ours.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        scope="token",
    ),
    Formulation(
        name="optimal_baseline",
        formula="r - b, b = sum(q r) / sum(q) over the group, q the squared norm of a rollout's score vector",
        source="Weaver and Tao 2001; Greensmith, Bartlett and Baxter 2004, JMLR 5, section 3.",
        needs_binary=False,
        min_group_size=1,
        zero_sum=False,
        scope="gram",
    ),
)

ALL_FORMULATIONS: dict[str, Formulation] = {entry.name: entry for entry in _ENTRIES}
"""Name -> entry: all there are; those of scope ``gram`` are for ``rank``, a run can be trained with any other."""
FORMULATIONS: dict[str, Formulation] = {
    name: entry for name, entry in ALL_FORMULATIONS.items() if entry.scope == "group"
}
"""Name -> entry of those that the rewards of one group decide: what any log can be asked afterwards."""
GRAM_FORMULATIONS: dict[str, Formulation] = {
    name: entry for name, entry in ALL_FORMULATIONS.items() if entry.scope == "gram"
}
"""Name -> entry of those that a Gram matrix and rewards decide: what any recomputed step can be asked as well."""


def formulation(name: str) -> Formulation:
    """A formulation by its name.

    Args:
        name: The formulation's name.

    Returns:
        Its entry.

    Raises:
        UsageError: There is no such formulation; the hint names them, the nearest ones first.

    Example:
        >>> formulation("dr_grpo").formula
        'r - mean(r)'
    """
    if name in ALL_FORMULATIONS:
        return ALL_FORMULATIONS[name]
    near = difflib.get_close_matches(name, ALL_FORMULATIONS, n=3, cutoff=0.5)
    listed = ", ".join(ALL_FORMULATIONS)
    meant = f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    raise UsageError(f"There is no advantage formulation {name!r}.", hint=f"{meant}There are: {listed}.")


def compute_advantages(name: str, rewards: ArrayLike) -> Array:
    """The advantages of a group, or of several groups of one size.

    Args:
        name: The formulation's name.
        rewards: Finite rewards, [..., G], for a formulation of the whole step [N, G]; several reward functions are
            already one weighted sum.

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
    return np.asarray(_function(chosen, values)(values), dtype=np.float64)


def compute_step_advantages(name: str, rewards: Iterable[ArrayLike]) -> tuple[Array, ...]:
    """The advantages of all groups of a step, which may differ in size.

    Args:
        name: The formulation's name.
        rewards: Finite rewards of each group, [N][G]; refused for the reasons of :func:`compute_advantages`.

    Returns:
        Advantages in float64, [N][G].

    Example:
        >>> found = compute_step_advantages("batch_mean", [[1.0, 1.0, 1.0], [0.0]])
        >>> [group.tolist() for group in found]
        [[0.25, 0.25, 0.25], [-0.75]]
    """
    chosen, groups = formulation(name), [np.asarray(group, dtype=np.float64) for group in rewards]
    sizes = sorted({len(group) for group in groups})
    indices = [[index for index, group in enumerate(groups) if len(group) == size] for size in sizes]
    stacks = [np.stack([groups[index] for index in of_size]) for of_size in indices]
    functions = [_function(chosen, stack) for stack in stacks]
    if chosen.scope == "step":
        return tuple(functions[0](groups))
    by_index: dict[int, Array] = {}
    for of_size, stack, function in zip(indices, stacks, functions, strict=True):
        by_index |= dict(zip(of_size, function(stack), strict=True))
    return tuple(by_index[index] for index in range(len(groups)))


def _function(chosen: Formulation, values: Array) -> Callable[[Any], Any]:
    """The formulation's function, once these rewards have such an advantage."""
    if values.ndim < 1 or values.shape[-1] < 1 or not np.all(np.isfinite(values)):
        raise ValueError("advantages need at least one reward, and all of them finite")
    reason = chosen.why_not(values)
    if reason is not None or chosen.function is None:
        raise UsageError(
            f"These rewards have no {chosen.name!r} advantage: {reason}.",
            hint="'grpo', 'dr_grpo' and 'reinforce' are defined for any reward.",
        )
    return chosen.function
