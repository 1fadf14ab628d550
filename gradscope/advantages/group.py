"""Advantages relative to the group: each rollout against the other rollouts of its prompt, and of single tokens.

Shapes: G rewards of a group, along the last axis; leading axes are groups. A group of equal rewards gets exactly zero
from each of them, where float rounding of the mean would leave 1e-17. T tokens of a completion, which differs from
rollout to rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import comb

from gradscope.metrics.gram.alignment import optimal_baselines
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.outcomes.passk import pass_at_k

Array = NDArray[np.float64]

TRL_EPSILON = 1e-4  # added to the group's std; verl adds 1e-6, OpenRLHF 1e-9
TRL_SCALES = {"group": "group", "True": "group", "batch": "batch", "none": "none", "False": "none"}
"""Spellings of TRL's ``scale_rewards``."""
NGRPO_EPSILON = 1e-6  # added to the std of ``ngrpo``, as its authors' program does
DRIFT, NOISE, START, KRPO_EPSILON = 1e-5, 1e-2, (0.0, 1.0), 1e-8
"""The filter of ``krpo``: variance of the state's drift Q and of a reward R, the state's mean and variance before the
first rollout, and the number added to its std. They are the constants of its authors' program."""


def _live_only(rewards: Array, advantages: Array) -> Array:
    """Advantages with exactly zero in the groups whose rewards are equal, where rounding would leave 1e-17."""
    is_live = np.ptp(rewards, axis=-1, keepdims=True) > EQUAL_REWARDS
    return np.asarray(np.where(is_live, advantages, 0.0), dtype=np.float64)


def dr_grpo(rewards: Array) -> Array:
    """The reward minus the group's mean, r - mean(r): sums to zero over the group.

    >>> dr_grpo(np.array([1.0, 0.0, 0.0, 1.0])).tolist()
    [0.5, -0.5, -0.5, 0.5]
    """
    return _live_only(rewards, rewards - rewards.mean(axis=-1, keepdims=True))


def grpo(rewards: Array) -> Array:
    """(r - mean(r)) / (std(r) + 1e-4), std with G - 1 in the denominator: TRL's ``scale_rewards="group"``.

    >>> grpo(np.array([1.0, 0.0, 0.0, 1.0])).round(4).tolist()
    [0.8659, -0.8659, -0.8659, 0.8659]
    """
    if rewards.shape[-1] < 2:
        return np.zeros(rewards.shape)
    return np.asarray(dr_grpo(rewards) / (rewards.std(axis=-1, ddof=1, keepdims=True) + TRL_EPSILON), dtype=np.float64)


def rloo(rewards: Array) -> Array:
    """The reward minus the mean of the other G - 1 rewards, which is (r - mean(r)) G / (G - 1); G >= 2.

    >>> rloo(np.array([1.0, 0.0, 0.0])).tolist()
    [1.0, -0.5, -0.5]
    """
    size = rewards.shape[-1]
    return np.asarray(dr_grpo(rewards) * (size / (size - 1)), dtype=np.float64)


def max_rl(rewards: Array) -> Array:
    """(r - mean(r)) / mean(r) of rewards that are not negative; zero for a group whose mean is zero.

    >>> max_rl(np.array([1.0, 0.0, 0.0, 0.0])).tolist()
    [3.0, -1.0, -1.0, -1.0]
    """
    mean = rewards.mean(axis=-1, keepdims=True)
    return np.asarray(np.divide(dr_grpo(rewards), mean, out=np.zeros(rewards.shape), where=mean > 0), dtype=np.float64)


def grpo_negative(rewards: Array) -> Array:
    """:func:`grpo` of rewards of 0 and 1, and -1 for every rollout of a group without a success.

    >>> grpo_negative(np.array([[0.0, 0.0], [1.0, 1.0]])).tolist()
    [[-1.0, -1.0], [0.0, 0.0]]
    """
    failed = rewards.max(axis=-1, keepdims=True) == 0.0
    return np.asarray(np.where(failed, -1.0, grpo(rewards)), dtype=np.float64)


def ngrpo(rewards: Array) -> Array:
    """(r - m) / (s + 1e-6), m and s of the group's rewards and one more of 1: a group of fails is pushed away from.

    The mean and the std, with G in the denominator of the variance, are of G + 1 rewards of 0 and 1, the last that of a
    rollout that was not sampled. A group of passes gets exactly zero.

    >>> ngrpo(np.array([1.0, 0, 0, 0, 0, 0, 0, 0]))[:2].round(2).tolist()  # the example of the paper
    [1.76, -0.5]
    """
    virtual = np.concatenate([rewards, np.ones((*rewards.shape[:-1], 1))], axis=-1)
    mean, std = virtual.mean(axis=-1, keepdims=True), virtual.std(axis=-1, ddof=1, keepdims=True)
    return np.asarray((rewards - mean) / (std + NGRPO_EPSILON), dtype=np.float64)


def krpo(rewards: Array) -> Array:
    """(r_i - x_i) / (sqrt(P_i) + 1e-8), x and P of a Kalman filter that has read the rewards up to r_i, as sampled.

    P' = P + Q, K = P' / (P' + R), x_i = x + K (r_i - x), P_i = (1 - K) P', from x = 0 and P = 1. The baseline has seen
    the rollout that it is for, and the order of the rollouts matters: the first has a baseline of 0.99 r.

    >>> krpo(np.array([1.0, 0.0])).round(4).tolist()  # x = 0.9901, 0.4974, P = 0.0099, 0.0050
    [0.0995, -7.0481]
    """
    advantages = np.empty(rewards.shape)
    state, variance = np.full(rewards.shape[:-1], START[0]), START[1]
    for index in range(rewards.shape[-1]):
        predicted = variance + DRIFT
        gain = predicted / (predicted + NOISE)
        state = state + gain * (rewards[..., index] - state)
        variance = (1 - gain) * predicted
        advantages[..., index] = (rewards[..., index] - state) / (np.sqrt(variance) + KRPO_EPSILON)
    return advantages


def leave_one_out_weights(k: int) -> Callable[[Array], Array]:
    """The weights of :func:`pass_weights` with a baseline: a rollout's gain over k - 1 others, 2 <= k <= G.

    The mean over all sets of k - 1 other rollouts of max(r_i, best of the set) - best of the set, times k. A rollout's
    baseline does not depend on it, so the mean over the group of A_i s_i is still an unbiased estimate of the gradient
    of the expected best of k, of pass@k where rewards are 0 and 1. Source: Walder and Karkhanis 2025, s^(loo-1).

    >>> leave_one_out_weights(2)(np.array([1.0, 0.0, 0.0, 0.5])).round(4).tolist()  # (1 + 1 + .5) 2/3
    [1.6667, 0.0, 0.0, 0.6667]
    """

    def weights(rewards: Array) -> Array:
        size = rewards.shape[-1]
        order = np.argsort(rewards, axis=-1, kind="stable")
        ascending = np.take_along_axis(rewards, order, axis=-1)
        # sets whose best is one of the lower ones: the difference of two neighbors is gained over each of them
        sets_below = np.cumsum(comb(np.arange(size - 1), k - 2))
        gained = np.cumsum(np.diff(ascending, axis=-1) * sets_below, axis=-1)
        sorted_gain = np.concatenate([np.zeros((*rewards.shape[:-1], 1)), gained], axis=-1)
        result = np.empty(rewards.shape)
        np.put_along_axis(result, order, sorted_gain * (k / comb(size - 1, k - 1)), axis=-1)
        return _live_only(rewards, result)

    return weights


def pass_weights(k: int) -> Callable[[Array], Array]:
    """The weights that make the policy gradient one of pass@k, without bias and without a baseline, 1 <= k <= G.

    A pass gets k, for every set of k rollouts that it is in has a success; a fail gets k times the share of such sets
    that another rollout saves, k (1 - C(G-1-c, k-1) / C(G-1, k-1)) with c passes. The mean over the group of A_i s_i is
    then the gradient, as it is with ``reinforce`` at k = 1. Source: Walder and Karkhanis 2025 (Pass@k policy
    optimization), arXiv 2505.15201, whose weights are for sums over the group: 1/G of these.

    >>> pass_weights(2)(np.array([1.0, 0.0, 0.0, 0.0])).round(4).tolist()
    [2.0, 0.6667, 0.6667, 0.6667]
    """

    def weights(rewards: Array) -> Array:
        size = rewards.shape[-1]
        num_pass = rewards.sum(axis=-1, keepdims=True).astype(np.int64)
        saved = pass_at_k(size - 1, np.minimum(num_pass, size - 1), k - 1)  # used where a fail leaves c <= G - 1
        return np.asarray(k * np.where(rewards == 1.0, 1.0, saved), dtype=np.float64)

    return weights


# Advantages whose baseline is a weighted mean of the group's rewards: by squared norms of gradients, or by lengths.
#
# The norms are for where a Gram matrix is available. Training has none: they take a backward pass a rollout, before the
# update that they are for. Lengths replace them where tokens' gradients are assumed to be equally large and
# orthogonal to it; they are known wherever completions are.
def optimal_advantages(rewards: Array, weights: Array) -> Array:
    """The reward minus the group's weighted mean, sum(w r) / sum(w), of [n, G].

    With w = |s|^2, the diagonal of the Gram matrix, or the number of tokens, no other constant of the group makes its
    gradient less noisy. It sees the rollout that it is for, as the group's mean does. A group of equal rewards gets
    exactly zero.

    >>> optimal_advantages(np.array([[1.0, 0.0]]), np.array([[3.0, 1.0]])).tolist()
    [[0.25, -0.75]]
    """
    return _live_only(rewards, rewards - optimal_baselines(rewards, weights))


# Advantages relative to the step: the baseline borrows from the other prompts, so dead groups still push.
#
# Groups may differ in size: N groups of a step, G rewards of a group, [N][G]; an array [N, G] is one such.
WHITENING_EPSILON = 1e-8  # added to the variance of ``reinforce_plus_plus``, as verl does


def batch_mean(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """The reward minus the mean over the step's rollouts: sums to zero over the step, not over a group.

    >>> [group.tolist() for group in batch_mean([np.array([1.0, 1.0, 1.0]), np.array([0.0])])]
    [[0.25, 0.25, 0.25], [-0.75]]
    """
    groups = list(rewards)
    mean = np.concatenate(groups).mean()
    return tuple(np.asarray(group - mean, dtype=np.float64) for group in groups)


def batch_std(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """(r - mean of the group) / (std of all rewards of the step + 1e-4): TRL's ``scale_rewards="batch"``.

    >>> found = batch_std([np.array([1.0, 0.0]), np.array([0.0, 0.0])])  # std of 1, 0, 0, 0: 1/2
    >>> [group.round(4).tolist() for group in found]
    [[0.9998, -0.9998], [0.0, 0.0]]
    """
    groups = list(rewards)
    spread = _spread(np.concatenate(groups))
    return tuple(dr_grpo(group) / (spread + TRL_EPSILON) for group in groups)


def reinforce_plus_plus(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """(r - m) / sqrt(v + 1e-8), m and v the mean and variance of all rewards of the step: no group has a baseline.

    The variance has R - 1 in its denominator. A step of equal rewards gets exactly zero.

    >>> found = reinforce_plus_plus([np.array([1.0, 1.0]), np.array([0.0, 0.0])])  # v = 1/3
    >>> [group.round(4).tolist() for group in found]
    [[0.866, 0.866], [-0.866, -0.866]]
    """
    groups = list(rewards)
    pooled = np.concatenate(groups)
    if np.ptp(pooled) <= EQUAL_REWARDS:
        return tuple(np.zeros(len(group)) for group in groups)
    scale = np.sqrt(pooled.var(ddof=1) + WHITENING_EPSILON)
    return tuple(np.asarray((group - pooled.mean()) / scale, dtype=np.float64) for group in groups)


def gdpo(rewards: Iterable[Array], weights: ArrayLike) -> tuple[Array, ...]:
    """Each reward function scaled within the group by itself, then weighed and summed, then scaled over the step.

    (r_f - mean_f) / (std_f + 1e-4) within the group, with G - 1; the sum s of the F functions, [N][G, F], by their
    weights, [F], over its std over the step + 1e-4, with R - 1: TRL's
    ``multi_objective_aggregation="normalize_then_sum"``. The step's mean of s, which TRL subtracts, is zero: s sums to
    zero in each group.

    >>> found = gdpo([np.array([[1.0, 0.0], [0.0, 0.1]]), np.array([[0.0, 1.0], [0.0, 0.0]])], [1.0, 1.0])
    >>> [group.round(4).tolist() for group in found]  # a tenth counts like a whole: they cancel, all but 1e-4
    [[0.0016, -0.0016], [1.2245, -1.2245]]
    """
    totals = []
    for group in rewards:  # of a function's rewards that are all equal nothing is left
        spreads = np.array([_spread(column) for column in group.T])
        totals.append(dr_grpo(group.T).T / (spreads + TRL_EPSILON) @ np.asarray(weights, dtype=np.float64))
    pooled = np.concatenate(totals)
    spread = _spread(pooled)
    return tuple(np.asarray(group / (spread + TRL_EPSILON), dtype=np.float64) for group in totals)


def _spread(values: Array) -> float:
    """The std with one less in the denominator; zero of one value, and of equal ones."""
    return float(np.sqrt(_variance(values, ddof=1))) if len(values) > 1 else 0.0


def shrinkage(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """The reward minus a James-Stein baseline between the group's mean and the mean of the other groups.

    b_ij = (1 - l_i) m_i^(-j) + l_i m^(-i), where m_i^(-j) is the mean of the other rewards of the group, m^(-i) that of
    the other groups' means, and l_i = (N-1)/N v/(v+s) with v the mean over the other groups of their mean's sampling
    variance and s the variance of their means. The baseline of a reward does not depend on it, so the gradient stays
    unbiased. Where groups differ in size, each mean and each variance is of its group's own size, and each group counts
    once. Source: Zeng et al. 2025, arXiv 2511.03710, equations 10 and 13 to 16. Where the other groups have neither
    spread nor noise, or there are none, l_i is 0, which is ``rloo``.

    >>> advantages = shrinkage([np.array([0.0, 0.0]), np.array([0.0, 1.0])])  # l_1 = 1/2 * .25 / (.25 + 0), l_2 = 0
    >>> [group.round(4).tolist() for group in advantages]
    [[-0.25, -0.25], [-1.0, 1.0]]
    """
    groups = list(rewards)
    leave_one_out = [(group.sum() - group) / (len(group) - 1) for group in groups]
    if len(groups) < 2:
        return tuple(group - baseline for group, baseline in zip(groups, leave_one_out, strict=True))
    means = np.array([group.mean() for group in groups])
    noises = np.array([_variance(group, ddof=1) / len(group) for group in groups])
    rest = [np.delete(np.arange(len(means)), index) for index in range(len(means))]
    # for each group, of all others: mean sampling variance of a mean, variance of the means, mean of the means
    noise = np.array([noises[index].mean() for index in rest])
    spread = np.array([_variance(means[index], ddof=0) for index in rest])
    target = np.array([means[index].mean() for index in rest])
    total = noise + spread
    weight = (len(groups) - 1) / len(groups) * np.divide(noise, total, out=np.zeros(len(groups)), where=total > 0)
    return tuple(
        group - ((1 - share) * baseline + share * mean)
        for group, baseline, share, mean in zip(groups, leave_one_out, weight, target, strict=True)
    )


def _variance(values: Array, *, ddof: int) -> float:
    """Exactly zero for equal values, where rounding of their mean would leave 1e-34 and decide the weight."""
    return float(values.var(ddof=ddof)) if np.ptp(values) > EQUAL_REWARDS else 0.0


COMPENSATION_LIMIT = 1.5
"""Largest factor of ``compensation_clipped``: halfway between no compensation and the most there can be."""


def return_to_go(token_rewards: Sequence[ArrayLike]) -> tuple[Array, ...]:
    """The summed reward of a token and those after it, minus the group's mean of that at the same position, [G][T].

    R_t = sum of the rewards from token t on; A_it = R_it - mean over the group of R_jt, a rollout that has ended
    counting as 0. A reward from before a token cannot be due to it, so it is left out.

    >>> [advantage.tolist() for advantage in return_to_go([[1.0, 0.0, 1.0], [0.0, 0.0]])]
    [[1.0, 0.5, 0.5], [-1.0, -0.5]]
    """
    return _against_group([np.cumsum(np.asarray(rewards, dtype=np.float64)[::-1])[::-1] for rewards in token_rewards])


def own_rewards(token_rewards: Sequence[ArrayLike]) -> tuple[Array, ...]:
    """A token's own reward minus the group's mean at the same position, [G][T]: later tokens do not count.

    A_it = r_it - mean over the group of r_jt, a rollout that has ended counting as 0.

    >>> [advantage.tolist() for advantage in own_rewards([[1.0, 0.0, 1.0], [0.0, 0.0]])]
    [[0.5, 0.0, 0.5], [-0.5, 0.0]]
    """
    return _against_group([np.asarray(rewards, dtype=np.float64) for rewards in token_rewards])


def _against_group(values: Sequence[Array]) -> tuple[Array, ...]:
    """Values of tokens, [G][T], minus their group's mean at the same position, an ended rollout counting as 0."""
    padded = np.zeros((len(values), max(len(row) for row in values)))
    for index, row in enumerate(values):
        padded[index, : len(row)] = row
    baseline = padded.mean(axis=0)
    return tuple(row - baseline[: len(row)] for row in values)


def gae(values: ArrayLike, reward: float, *, decay: float = 0.95) -> Array:
    """Generalized advantage estimation, [T], with one reward at the end and no discount (Schulman et al. 2016).

    d_t = V_{t+1} - V_t, V the expected reward before each token, and the reward itself after the last one; A_t =
    d_t + decay A_{t+1}, 0.95 the paper's and TRL's decay. At 1 that is the reward minus the value, at 0 the change of
    the value.

    >>> gae([0.5, 0.25], 1.0, decay=0.5).tolist(), gae([0.5, 0.25], 1.0, decay=1.0).tolist()
    ([0.125, 0.75], [0.5, 0.75])
    """
    before = np.asarray(values, dtype=np.float64)
    advantages, after = np.diff(before, append=reward), 0.0
    for token in reversed(range(len(before))):
        after = advantages[token] = advantages[token] + decay * after
    return np.asarray(advantages, dtype=np.float64)


def compensation(logprobs: ArrayLike, max_logprobs: ArrayLike, *, limit: float = 2.0) -> Array:
    """The factor 2 - p/p_max, [T]: 1 for the most likely token, up to 2, or the limit, for one that was hardly likely.

    >>> compensation(np.log([0.5, 0.1]), np.log([0.5, 0.4])).round(4).tolist()
    [1.0, 1.75]
    >>> compensation(np.log([0.5, 0.1]), np.log([0.5, 0.4]), limit=1.5).round(4).tolist()
    [1.0, 1.5]
    """
    ratio = np.exp(np.minimum(np.asarray(logprobs, dtype=np.float64) - np.asarray(max_logprobs), 0.0))
    return np.asarray(np.minimum(2.0 - ratio, limit), dtype=np.float64)
