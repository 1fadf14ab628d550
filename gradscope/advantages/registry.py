"""Every advantage formulation by name: the one list that training, rank and degeneracy choose from.

A new formulation is one function and one row in :data:`ENTRIES`. The inputs of a formulation are its ``scope``: the
rewards of a group, those of the step, lengths of completions, the rewards of each function, what the run remembers,
something of every token, or a Gram matrix. The first two are functions of rewards and can be asked "what if" of any
log; those of the run and of tokens exist while a run is trained (:mod:`gradscope.advantages.online`), the last where
`rank` has the matrix (:mod:`gradscope.advantages.group`).

Shapes: G rewards of a group, along the last axis; leading axes are groups.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.advantages import group
from gradscope.advantages.formulation import Formulation, is_in_file, read_formulation
from gradscope.errors import UsageError

Array = NDArray[np.float64]

LOGGED = "logged"  # the name of the advantage that the optimizer saw
PASS_WEIGHT = 0.1  # weight of passes in ``w_reinforce``, lambda in its source, which recommends this value


def _tasa(rewards: Array) -> Array:
    """+G/n_pos for a pass, -G/n_neg for a fail: the mean over passes minus the mean over fails."""
    # Each class weighs one in the mean over the group that training takes. Sums to zero in a mixed group; one of one
    # class keeps that class's mean of +1 or -1.
    size = rewards.shape[-1]
    num_pass = rewards.sum(axis=-1, keepdims=True)
    class_advantages = rewards / np.maximum(num_pass, 1) - (1 - rewards) / np.maximum(size - num_pass, 1)
    return np.asarray(size * class_advantages, dtype=np.float64)


_DRGRPO_PAPER = "Liu et al. 2025, Understanding R1-Zero-like training (Dr. GRPO), arXiv 2503.20783."
_STARVATION_PAPER = "Nie et al. 2026, Gradient starvation in binary-reward GRPO, arXiv 2605.07689."
_SUMMARY = "The research summary that this project started from; no publication of it is known to us."
_PSR_PAPER = "Zhu et al. 2025, The surprising effectiveness of negative reinforcement, arXiv 2506.01347"
_binary_formulation = partial(Formulation, needs_binary=True)
_token_formulation = partial(Formulation, scope="token")

ENTRIES: tuple[Formulation, ...] = (
    Formulation(
        name="grpo",
        formula="(r - mean(r)) / (std(r) + 1e-4), std with G - 1",
        source="Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300); epsilon and ddof as in TRL's GRPOTrainer.",
        zero_sum=True,
        function=group.grpo,
    ),
    Formulation(name="dr_grpo", formula="r - mean(r)", source=_DRGRPO_PAPER, zero_sum=True, function=group.dr_grpo),
    Formulation(
        name="rloo",
        formula="r_i - mean of the other G - 1 rewards",
        source="Ahmadian et al. 2024 (Back to basics), arXiv 2402.14740.",
        min_group_size=2,
        zero_sum=True,
        function=group.rloo,
    ),
    Formulation(
        name="reinforce",
        formula="r",
        source="Williams 1992, without a baseline.",
        function=lambda rewards: np.array(rewards, dtype=np.float64),
    ),
    _binary_formulation(
        name="sign",
        formula="2 r - 1",
        source=_STARVATION_PAPER,
        function=lambda rewards: np.asarray(2.0 * rewards - 1.0, dtype=np.float64),
        takes_c=True,
    ),
    _binary_formulation(
        name="positive_only",
        formula="1 if r = 1 else 0",
        source=f"{_PSR_PAPER} (PSR).",
        function=lambda rewards: np.array(rewards, dtype=np.float64),
    ),
    _binary_formulation(
        name="negative_only",
        formula="0 if r = 1 else -1",
        source=f"{_PSR_PAPER} (NSR).",
        function=lambda rewards: np.asarray(rewards - 1.0, dtype=np.float64),
    ),
    _binary_formulation(
        name="w_reinforce",
        formula="0.1 if r = 1 else -1",
        source=f"{_PSR_PAPER} (W-REINFORCE), lambda = 0.1.",
        function=lambda rewards: np.asarray(np.where(rewards == 1.0, PASS_WEIGHT, -1.0), dtype=np.float64),
    ),
    _binary_formulation(
        name="tasa",
        formula="G/n_pos if r = 1 else -G/n_neg",
        source="Name and weights by class are those of the request that this project started from; no publication of "
        "it is known to us.",
        function=_tasa,
    ),
    Formulation(
        name="max_rl",
        formula="(r - mean(r)) / mean(r), 0 where mean(r) <= 0",
        source="Maximum-likelihood RL, arXiv 2602.02710; the zero as in prime-rl.",
        zero_sum=True,
        function=group.max_rl,
    ),
    _binary_formulation(
        name="grpo_negative",
        formula="grpo, and -1 for every rollout of a group without a success",
        source="Ours, a plain form of what ngrpo does for such groups.",
        function=group.grpo_negative,
        takes_c=True,
    ),
    _binary_formulation(
        name="ngrpo",
        formula="(r - m) / (s + 1e-6), m and s the mean and std of the group's rewards and one more of 1, std with G",
        source="Nan et al. 2025 (NGRPO), arXiv 2509.18851, without its asymmetric clipping, a setting of the loss.",
        function=group.ngrpo,
    ),
    Formulation(
        name="krpo",
        formula="(r_i - x_i) / (sqrt(P_i) + 1e-8), x_i and P_i of a Kalman filter after the rewards up to r_i",
        source="Wang et al. 2025 (KRPO), arXiv 2505.07527, with the constants of the authors' program.",
        function=group.krpo,
    ),
    *(
        _binary_formulation(
            name=f"pass_at_{k}",
            formula=f"{k} if r = 1 else {k} (1 - C(G-1-c, {k - 1}) / C(G-1, {k - 1})), c passes in the group",
            source=f"Walder and Karkhanis 2025 (PKPO), arXiv 2505.15201, for k = {k} without a baseline.",
            min_group_size=k,
            function=group.pass_weights(k),
        )
        for k in (2, 4)
    ),
    *(
        Formulation(
            name=f"pass_at_{k}_loo",
            formula=f"{k} x mean over sets of {k - 1} other rollouts of max(r, best of the set) - best of the set",
            source=f"Walder and Karkhanis 2025 (PKPO), arXiv 2505.15201, s^(loo-1) for k = {k}.",
            min_group_size=k,
            function=group.leave_one_out_weights(k),
        )
        for k in (2, 4)
    ),
    Formulation(
        name="batch_mean",
        formula="r - mean of all rewards of the step",
        source="Williams 1992 with the step's mean as baseline.",
        scope="step",
        function=group.batch_mean,
    ),
    Formulation(
        name="reinforce_plus_plus",
        formula="(r - m) / sqrt(v + 1e-8), m and v the mean and variance (with N - 1) of all N rewards of the step",
        source="Hu et al. 2025 (REINFORCE++), arXiv 2501.03262, without its KL reward; verl and OpenRLHF count a "
        "rollout once a token in m and v.",
        scope="step",
        function=group.reinforce_plus_plus,
    ),
    Formulation(
        name="batch_std",
        formula="(r - mean(r)) / (std of all N rewards of the step, with N - 1, + 1e-4)",
        source='TRL\'s GRPOTrainer with scale_rewards="batch".',
        zero_sum=True,
        scope="step",
        function=group.batch_std,
    ),
    Formulation(
        name="gdpo",
        formula="s / (std(s) + 1e-4) over the step, s the weighted sum of the grpo of each reward function",
        source="Liu et al. 2026 (GDPO), arXiv 2601.05242, as in TRL with multi_objective_aggregation="
        '"normalize_then_sum".',
        zero_sum=True,
        scope="functions",
    ),
    Formulation(
        name="shrinkage",
        formula="r - (1 - l) mean of the other G - 1 rewards - l mean of the other groups, l = (N-1)/N v/(v+s)",
        source="Zeng et al. 2025 (Shrinkage baselines), arXiv 2511.03710, equations 10 and 13 to 16.",
        min_group_size=2,
        scope="step",
        function=group.shrinkage,
    ),
    Formulation(
        name="running_mean",
        formula="r - b, b the prompt's running mean before this visit: b <- (b + mean(r)) / 2, first the step's mean",
        source="Ours, a plain form of what spo tracks.",
        scope="run",
    ),
    _binary_formulation(
        name="spo",
        formula="r - a / (a + b), scaled over the step; at each visit a <- d a + passes, b <- d b + fails, "
        "d = 2^(-D / 0.06) within [0.875, 0.96]",
        source="Xu and Ding 2025 (Single-stream policy optimization), arXiv 2509.13232, with the constants of the "
        "authors' program and no samples before the run; its sampling of prompts is not an advantage's.",
        scope="run",
    ),
    _token_formulation(
        name="per_step",
        formula="R_t - mean over the group of R_t, R_t the sum of the token rewards from token t on",
        source="REINFORCE with causality (Williams 1992) on rewards of single steps; DeepSeekMath (arXiv 2402.03300, "
        "section 4.1.3) scales each step's reward first.",
    ),
    _token_formulation(
        name="per_token",
        formula="r_t - mean over the group of r_t, r_t the token's own reward",
        source="Ours, per_step without what comes after a token.",
    ),
    _token_formulation(
        name="compensation",
        formula="grpo x (2 - p_t/p_max), p_max the probability of the most likely token there",
        source=_SUMMARY,
    ),
    _token_formulation(
        name="compensation_clipped", formula="grpo x min(2 - p_t/p_max, 1.5)", source=f"{_SUMMARY} The limit is ours."
    ),
    _token_formulation(
        name="token_critic",
        formula="grpo + b_t, b a linear head on the policy's hidden state at token t, trained on -grpo x b_t",
        source=f"{_SUMMARY} The head's form and its start at zero are ours.",
    ),
    _token_formulation(
        name="gae",
        formula="A_t = V_{t+1} - V_t + 0.95 A_{t+1}, r in place of V after the last token; V a linear head on the "
        "policy's hidden state before token t, trained on (V_t - R_t)^2, R_t = A_t + V_t",
        source="Schulman et al. 2016 (GAE), arXiv 1506.02438, as in PPO (arXiv 1707.06347), gamma 1, not whitened. "
        "The head's form and its start at zero are ours.",
    ),
    Formulation(
        name="optimal_baseline",
        formula="r - b, b = sum(q r) / sum(q) over the group, q the squared norm of a rollout's score vector",
        source="Weaver and Tao 2001; Greensmith, Bartlett and Baxter 2004, JMLR 5, section 3.",
        scope="gram",
    ),
    Formulation(
        name="opo",
        formula="r - b, b = sum(l r) / sum(l) over the group, l the tokens of a completion",
        source="Hao et al. 2025 (OPO), arXiv 2505.23585.",
        scope="length",
    ),
)
"""Formula, source and needs of every formulation, one row each."""
ALL_FORMULATIONS: dict[str, Formulation] = {entry.name: entry for entry in ENTRIES}
"""Name -> entry: all there are; those of scope ``gram`` are for ``rank``, a run can be trained with any other."""
FORMULATIONS: dict[str, Formulation] = {name: e for name, e in ALL_FORMULATIONS.items() if e.scope == "group"}
"""Name -> entry of the formulations of one group's rewards, which can be computed from any log."""
GRAM_FORMULATIONS: dict[str, Formulation] = {
    name: entry for name, entry in ALL_FORMULATIONS.items() if entry.scope in ("gram", "length")
}
"""Name -> entry of those that weigh the rewards of a group, which any recomputed step has as well."""


CONSTANT = ":c="  # between the name of a formulation that takes a constant and its value, as in ``sign:c=0.5``
_FROM_FILES: dict[str, Formulation] = {}  # name -> entry of the user's own that were named so far


def named_formulation(name: str) -> Formulation:
    """A formulation by its name, ``sign:c=0.5`` with another constant; of ``my.py:name`` the file is run now."""
    if is_in_file(name):
        _FROM_FILES[name] = read_formulation(name)
    return formulation(name)


def short_name(name: str) -> str:
    """A name for folders and ids: of one in a file, without its folders.

    >>> short_name("rules/my.py:centered"), short_name("sign:c=0.5"), short_name("grpo")
    ('my.centered', 'sign-c0.5', 'grpo')
    """
    path, _, function = name.rpartition(":")
    return f"{Path(path).stem}.{function}" if is_in_file(name) else name.replace(CONSTANT, "-c")


def is_formulation(name: str) -> bool:
    """Whether there is such a formulation; one in a file counts once it is loaded."""
    return name in ALL_FORMULATIONS or name in _FROM_FILES or _with_constant(name) is not None


@cache
def _with_constant(name: str) -> Formulation | None:
    """The formulation of ``NAME:c=X``; None where NAME takes no constant or X is none."""
    entry = ALL_FORMULATIONS.get(name.partition(CONSTANT)[0])
    try:
        constant = float(name.partition(CONSTANT)[2])
    except ValueError:
        return None
    if entry is None or not entry.takes_c or not 0 <= constant < math.inf:
        return None
    return entry.with_c(name, constant)


def formulation(name: str) -> Formulation:
    """A formulation by its name. No file is run: the name may be one that a log gives.

    Raises:
        UsageError: There is no such formulation; the hint names them, the nearest ones first.

    >>> formulation("dr_grpo").formula
    'r - mean(r)'
    """
    entry = ALL_FORMULATIONS.get(name) or _FROM_FILES.get(name) or _with_constant(name)
    if entry is not None:
        return entry
    if is_in_file(name):
        raise UsageError(
            f"{name} is code in a file, which runs only where you name it.", hint=f"Add --advantage {name}"
        )
    near = difflib.get_close_matches(name, ALL_FORMULATIONS, n=3, cutoff=0.5)
    listed = ", ".join(f"{entry.name} (for rank)" if entry.scope == "gram" else entry.name for entry in ENTRIES)
    constants = " and ".join(f"{entry.name}{CONSTANT}X" for entry in ENTRIES if entry.takes_c)
    suggestion = f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    raise UsageError(
        f"There is no advantage formulation {name!r}.",
        hint=f"{suggestion}There are: {listed}; {constants}, X 0 or more; my.py:name is one of your own.",
    )


def compute_advantages(name: str, rewards: ArrayLike) -> Array:
    """The advantages of a group or several of one size, [..., G], in float64; TRL's float32 differs by about 1e-7.

    For a formulation of the step [N, G]; several reward functions are already one weighted sum.

    Raises:
        UsageError: There is no such formulation, or these rewards have no such advantage.
        ValueError: There is no reward, or one is not finite.

    >>> compute_advantages("rloo", [1.0, 0.0, 0.0]).tolist()
    [1.0, -0.5, -0.5]
    """
    chosen = formulation(name)
    values = np.asarray(rewards, dtype=np.float64)
    return np.asarray(_function(chosen, values)(values), dtype=np.float64)


def compute_step_advantages(name: str, rewards: Iterable[ArrayLike]) -> tuple[Array, ...]:
    """The advantages of all groups of a step, which may differ in size, [N][G]; refused likewise.

    >>> [group.tolist() for group in compute_step_advantages("batch_mean", [[1.0, 1.0, 1.0], [0.0]])]
    [[0.25, 0.25, 0.25], [-0.75]]
    """
    chosen, groups = formulation(name), [np.asarray(values, dtype=np.float64) for values in rewards]
    sizes = sorted(set(map(len, groups)))
    stacks = [np.stack([values for values in groups if len(values) == size]) for size in sizes]
    functions = [_function(chosen, stack) for stack in stacks]
    if chosen.scope == "step":
        return tuple(functions[0](groups))
    by_size = {size: iter(function(stack)) for size, function, stack in zip(sizes, functions, stacks, strict=True)}
    return tuple(next(by_size[len(values)]) for values in groups)


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
