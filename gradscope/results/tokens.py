"""The results of `gradscope rank --rows token` on single tokens and kinds of tokens."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.results.source import OfStep

TokenMethod = Literal["exact", "sampled", "sketch"]
"""``exact``: all token rows; ``sampled``: exact rows of a random part of them; ``sketch``: all rows, each reduced to k
numbers."""


class TokenRows(Struct, frozen=True, kw_only=True):
    """How the token rows of a group were had."""

    method: TokenMethod  # whether all tokens were measured, and how
    num_tokens: int  # tokens of the rollouts that count in the loss
    frac_seen: float  # share of them in the matrix. The effective rank of a sample is at most the sample's size.
    seed: int  # seed of the drawn tokens, or of the sketch
    value_error: float
    """Error of a singular value, over the Frobenius norm: that of the arithmetic; where rows were sketched the root of
    ``energy_error``."""
    num_buckets: int | None = None  # numbers of each sketched row, k
    energy_error: float | None = None
    """Of a sketch sqrt((1 + 1/PR) / k), PR the participation ratio: the root mean square of |K~ - K|_F over tr K. It
    bounds the error of every squared singular value, over their sum."""


class GradientSparsity(OfStep, frozen=True, kw_only=True):
    """Four definitions on the sizes of some parts x of one step's gradient, under the logged advantage."""

    parts: Literal["tokens", "entries"]
    """The kind of x: the row norm of every token, or the absolute value of every entry of one weight's gradient."""
    tensor: str | None  # the weight; None for tokens
    num_parts: int  # tokens or entries
    frac_seen: float  # share of them that was measured: below 1 where tokens were drawn at random
    zero: Estimate  # share that is exactly zero
    small: Estimate  # share below 1 % of the largest; zeros among them
    hoyer: Estimate  # (sqrt(n) - sum x / sqrt(sum x^2)) / (sqrt(n) - 1): 0 for equal sizes, 1 for a single part
    gini: Estimate  # mean absolute difference over twice the mean: 0 for equal sizes, (n - 1)/n for a single part


class CorrectionEffect(OfStep, frozen=True, kw_only=True):
    """The effect of one correction for the sampling engine on a step, f its factor on a token's gradient."""

    correction: str
    """``none``, ``token_ratio``, ``tis``, ``icepop``, ``mis``, ``token_mask``, ``sequence_truncate``,
    ``sequence_mask``, ``geometric_mask``, ``sequence_ratio``; ``trained`` for the run's own."""
    units: Literal["tokens", "sequences"]  # the units that have one f each
    kept: Estimate  # share of the units with f > 0
    ess: Estimate  # (sum of f)^2 / (number of f * sum of f^2)
    chi2: Estimate  # mean of f^2 - 1
    norm_ratio: Estimate  # norm of the corrected gradient over that without a correction
    cosine: Estimate  # cosine of the corrected gradient with that without a correction
    unbiased_cosine: Estimate
    """Cosine with the gradient under full sequence ratios, whose expectation is the gradient on policy."""


class TokenKind(OfStep, frozen=True, kw_only=True):
    """The tokens of one kind, and their part of a step's gradient; None means all of its kind."""

    sign: Literal["positive", "negative"] | None  # of their advantage
    probability: tuple[float, float] | None
    """Between which bounds the policy's probability of them lies, the upper one only at 1 in it."""
    entropy: Literal["top_fifth", "rest"] | None
    """Whether the policy's entropy was among the highest fifth of the step's tokens."""
    num_tokens: int  # how many there are
    frac_tokens: Estimate  # share of the tokens that have an advantage
    energy_share: Estimate  # share of the sum over tokens of |v_t grad log pi|^2
    gradient_share: Estimate  # their part of the gradient along its own direction
    cosine: Estimate  # cosine of their summed gradient with the step's


class EntropyChange(OfStep, frozen=True, kw_only=True):
    """Which way a step's gradient moves the entropy of the tokens it was made of, to first order."""

    entropy: Estimate  # mean entropy of the tokens that count, in nats
    rate: Estimate  # change of that mean by a step along the negative gradient, for each unit of learning rate
    cosine: Estimate  # cosine of the gradient of that mean with the direction of the update: below 0 the entropy falls
    covariance: Estimate  # covariance of log pi and advantage over tokens
    logged: float | None  # the entropy that the trainer logged at this step
    logged_next: float | None  # and at the next one, on other prompts
    last: int | None  # updates that the next weights on disk have had; None without any
    measured: Estimate  # change of the mean entropy up to these weights, at the same tokens


class KlToken(Struct, frozen=True, kw_only=True):
    """One token far from the reference."""

    group_id: str
    sample: int  # its rollout within the group
    position: int  # its position in the completion, from 0
    text: str  # the token alone as text
    logprob: float  # log pi of the policy
    reference: float  # log pi of the reference
    k1: float  # log(p / p_ref)
    k3: float  # p_ref / p - 1 - log(p_ref / p)


class TokenKl(OfStep, frozen=True, kw_only=True):
    """The tokens of a step against the reference policy."""

    k1: Estimate  # mean of log(p / p_ref) over tokens
    k3: Estimate  # mean of p_ref / p - 1 - log(p_ref / p)
    top_share: Estimate  # share of the summed k3 that the largest hundredth of the tokens holds
    top: tuple[KlToken, ...]  # the tokens with the largest k3


class TurnShare(OfStep, frozen=True, kw_only=True):
    """The part of one turn in a step's gradient."""

    turn: int  # from 1
    and_later: bool  # whether later turns are in it too
    num_rollouts: int  # rollouts that have it
    frac_tokens: Estimate  # share of the tokens that count in the loss
    gradient_share: Estimate  # its part of the gradient along the gradient's own direction
    cosine: Estimate  # cosine of its summed gradient with the step's


class LogprobChange(OfStep, frozen=True, kw_only=True):
    """How far log pi of a step's own tokens moved from the weights before it to the next checkpoint, in nats."""

    first: int  # updates that the earlier weights have had, those that the step started from
    last: int  # updates that the later ones have had
    num_tokens: int  # tokens that count in the loss
    positive: Estimate  # mean change of the tokens whose advantage is above 0
    negative: Estimate  # of those below 0
    neither: Estimate  # of those at 0, which the step's gradient does not see
    difference: Estimate  # the first minus the second
    matched: Estimate
    """The same among tokens of like probability: above 0 where training moved them as the advantages ask."""
