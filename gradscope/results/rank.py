"""The result of `gradscope rank`, of single tokens and kinds of tokens first.

Shapes: R rollouts, G group size, P parameters, N rows of the matrix; W_t weights after t updates, T checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.results.norms import LogprobDifference
from gradscope.results.source import OfAdvantage, OfStep, RowKind, Source
from gradscope.shown import Shown

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


class WeightUpdate(Struct, frozen=True, kw_only=True):
    """The change of one weight matrix between two checkpoints."""

    tensor: str
    first: int  # updates that the earlier weights have had
    last: int  # updates that the later weights have had
    shape: tuple[int, int]  # rows and columns
    update_size: Estimate  # |W_last - W_first|_F over |W_0|_F, of an adapter its base's
    singular_values: tuple[float, ...]  # of the change, descending
    effective_rank: Estimate  # exp H(s / sum s)
    gaussian: Estimate
    """The effective rank of a matrix of this shape with independent entries; of an adapter that of a product of two
    such factors of its rank."""
    stable_rank: Estimate  # sum s^2 / s_1^2
    top_energy: Estimate  # s_1^2 / sum s^2: the share of a rank-one change
    principal_overlap: Estimate  # share of the change's energy in the principal subspace of W_0
    principal_null: Estimate  # the same of a random change
    spectrum_drift: Estimate
    """|s(W_last) - s(W_first)|_2 over |W_last - W_first|_F: the part of the change that is in the singular values."""
    spectrum_drift_null: Estimate  # the same of an unrelated change of this size
    principal_angle: Estimate  # degrees by which the principal directions turned
    principal_angle_null: Estimate  # the same of an unrelated change of this size
    bfloat16_changed: Estimate  # share of entries whose bfloat16 rounding changed


def whole_changes(updates: Sequence[WeightUpdate]) -> list[WeightUpdate]:
    """The changes from the first checkpoint to the last."""
    first, last = min(update.first for update in updates), max(update.last for update in updates)
    return [update for update in updates if (update.first, update.last) == (first, last)]


def preferred(names: Sequence[str]) -> str | None:
    """The advantage that a sentence or a figure is about: the logged one, else the first; None of none."""
    return "logged" if "logged" in names else next(iter(names), None)


class AdapterState(Struct, frozen=True, kw_only=True):
    """One product B A of a LoRA adapter at one checkpoint."""

    tensor: str  # the weight that it is added to
    num_updates: int  # updates that it has had
    rank: int  # r, the most that its rank can be
    a_norm: Estimate  # |A|_F
    b_norm: Estimate  # |B|_F: 0 where the adapter does nothing yet
    product_size: Estimate  # |s B A|_F over |W|_F of the weight that it is added to
    effective_rank: Estimate  # exp H(s / sum s) of B A
    unrelated_rank: Estimate  # the effective rank of a product of unrelated factors of these shapes
    alignment: Estimate  # |B A|_F over |B|_F |A|_F
    unrelated_alignment: Estimate  # the same of unrelated factors


class UpdateTrajectory(Struct, frozen=True, kw_only=True):
    """The updates W_t - W_0 of all checkpoints of one tensor, or of all tensors together, as T rows of one matrix."""

    tensor: str | None  # the parameter's name; None: all matrices together
    num_updates: tuple[int, ...]  # t of each row
    effective_rank: Estimate  # exp H(s / sum s) of the T rows, at most T
    top_energy: Estimate  # s_1^2 / sum s^2 of the T rows
    linear_growth: Estimate  # share of energy on the best straight line D_t = t V
    walk_effective_rank: Estimate  # the effective rank of a random walk at these checkpoints
    walk_top_energy: Estimate  # its share of energy in one direction
    walk_linear_growth: Estimate  # its share of energy on a straight line


class GradientAndUpdate(Struct, frozen=True, kw_only=True):
    """The gradient of one weight at a step, and its change from there to the next checkpoint."""

    step: int  # the step of the gradient, the first one after ``first`` updates
    tensor: str
    first: int  # updates that the weights of the gradient have had, W_a
    last: int  # updates of the next checkpoint, W_b
    gradient_rank: Estimate  # exp H(s / sum s) of dL/dW
    gradient_top_energy: Estimate  # s_1^2 / sum s^2 of dL/dW
    update_rank: Estimate  # exp H(s / sum s) of W_b - W_a
    update_top_energy: Estimate  # s_1^2 / sum s^2 of W_b - W_a
    gaussian: Estimate  # the effective rank of a matrix of this shape with independent entries: the null of both


class OptimizerStep(OfStep, frozen=True, kw_only=True):
    """The first step of a fresh optimizer from the gradient of a step."""

    tensor: str | None  # the parameter's name; None: all matrices together
    optimizer: Literal["sgd", "adam", "muon"]  # which one, as PyTorch has it
    effective_rank: Estimate  # exp H(s / sum s) of the step; over all matrices their mean
    cosines: Mapping[str, Estimate]  # optimizer -> cosine of the two steps
    bfloat16_moved: Estimate
    """Share of entries whose bfloat16 rounding the step changes, at the size of Adam's at the logged learning rate."""


class ModuleShare(OfStep, frozen=True, kw_only=True):
    """The part of one kind of module in the gradient of a step."""

    module: Literal["output head", "embedding", "attention", "mlp", "other"]
    """Which weights, by their names; ``other`` is norms and unrecognized names."""
    norm: Estimate  # norm of the gradient of these weights
    energy_share: Estimate  # its square over that of the gradient
    frac_parameters: Estimate
    """Share of the trainable parameters, which the other is where the gradient is spread evenly."""


class NullRank(Struct, frozen=True, kw_only=True):
    """The effective rank under one null model, on the same live sub-groups."""

    effective_rank: Estimate
    """Mean over the live sub-groups, interval by resampling groups; each sub-group's own is a mean over draws."""
    difference: Estimate  # effective rank minus that of the null, paired by sub-group
    ratio: Estimate  # mean effective rank over the mean of the null, from the same sub-groups
    two_direction_energy: Estimate  # share of sum s^2 in the two largest singular values under the null
    profile: tuple[float, ...] = ()  # mean over the live sub-groups of s / sum s


class RankCurvePoint(OfAdvantage, frozen=True, kw_only=True):
    """A rank averaged over the groups of one step."""

    group_size: int  # rows of each matrix
    num_groups: int  # sub-groups of this size at the step
    num_dead: int  # those whose advantages are all zero: their matrix is zero and has no rank
    effective_rank: Estimate  # mean over the live sub-groups, interval by resampling groups
    given_prompts: Estimate
    """The same mean with the interval of other rollouts of the same prompts, by leaving each rollout out once."""
    stable_rank: Estimate  # as ``effective_rank``
    participation_ratio: Estimate  # likewise
    two_direction_energy: Estimate
    """Share of sum s^2 in the two largest singular values, averaged likewise; of two rows it is 1."""
    summed_energy: Estimate
    """|sum of rows|^2 over the sum of their squared norms, averaged likewise: 1 for unrelated rows."""
    shared_directions: Estimate
    """Directions on which a sub-group's unit rows have more energy than one of them could have: their mean number."""
    shared_energy: Estimate  # share of the rows' squared norms on the shared directions, averaged likewise
    shared_sum: Estimate  # share of |sum of rows|^2 on them, averaged over the sub-groups whose sum is not zero
    shared_kept: Estimate
    """``summed_energy`` of the rows' parts on them, averaged over the sub-groups whose rows have any."""
    residual_kept: Estimate
    """``summed_energy`` of the rest of the rows, averaged over the sub-groups where it is not zero."""
    profile: tuple[float, ...] = ()
    """Mean over the live sub-groups of s / sum s, largest first; the effective rank is its exponential entropy."""
    nulls: Mapping[str, NullRank] = {}
    """The same under each null model; empty where every sub-group is dead."""


class TokenRankPoint(OfAdvantage, frozen=True, kw_only=True):
    """Ranks of token rows, averaged over the groups of one step."""

    group_size: int  # rollouts over which an advantage was computed
    method: TokenMethod  # how the rows were had; ``sampled`` where any group was
    num_groups: int  # groups, or parts of them, of this size at the step
    num_dead: int  # those whose token weights are all zero: their matrix is zero and has no rank
    num_rows: Estimate  # token rows of a live group, N. Mean over live groups.
    frac_seen: float  # share of the step's tokens that are rows
    effective_rank: Estimate  # mean over live groups, interval by resampling groups
    stable_rank: Estimate  # likewise
    participation_ratio: Estimate  # likewise
    two_direction_energy: Estimate  # share of sum s^2 in the two largest singular values, averaged likewise
    energy_error: float | None = None
    """Of sketches the largest error of a squared singular value, over their sum, of any live group."""
    nulls: Mapping[str, NullRank] = {}
    """The same under each null model; empty where no group is live."""


class WeightRankPoint(OfAdvantage, frozen=True, kw_only=True):
    """The rank of dL/dW of one group of G rollouts, averaged over the groups of one step."""

    group_size: int  # rollouts of each group, G
    tensor: str | None  # the weight; None for the mean over all weights of each group
    shape: tuple[int, int] | None
    """Its outputs and inputs, the smaller of which bounds the rank; None for the mean over weights."""
    num_groups: int  # groups, or parts of them, of this size at the step
    num_dead: int  # those without a gradient
    effective_rank: Estimate  # mean over the live ones, interval by resampling groups
    stable_rank: Estimate  # likewise
    participation_ratio: Estimate  # likewise
    two_direction_energy: Estimate  # share of sum s^2 in the two largest singular values, averaged likewise
    nulls: Mapping[str, NullRank] = {}
    """The same under each null model, ``gaussian`` with the norms of the matrix's rows (of the smaller side)."""


class SizeChange(OfAdvantage, frozen=True, kw_only=True):
    """The effect of a larger group on the effective rank, from the same rollouts of the same prompts."""

    matrix: str  # which matrix: a kind of rows, or the name of a weight
    first: int  # the smaller group size
    second: int  # the larger one
    difference: Estimate
    """Effective rank at the larger minus at the smaller, paired by prompt; prompts that live at every size."""


class HeldoutTransfer(OfAdvantage, frozen=True, kw_only=True):
    """Of one step under one advantage, over pairs of a training and a held-out prompt, to first order."""

    num_groups: int  # groups of the step with a gradient
    num_heldout: int  # held-out prompts with a correct answer that are no prompts of the step
    frac_hurt: Estimate
    """Share of pairs of which the first lowers the log-probability of the correct answers of the second."""
    cosine: Estimate
    """Mean cosine of a group's gradient with that of the log-probability of a held-out prompt's correct answers."""
    transfer: Estimate
    """The step's effect on held-out correct answers over its effect on those that it was trained on."""


class Interference(OfAdvantage, frozen=True, kw_only=True):
    """Of one step under one advantage, over pairs of different groups, to first order."""

    frac_hurt: Estimate
    """Share of pairs of which the first lowers the log-probability of the correct answers of the second."""
    cosine: Estimate  # mean cosine of a group's gradient with the mean score vector of another's correct rollouts
    transfer: Estimate  # the effect of all other groups on a group's correct answers over that of its own gradient


class GroupInfluence(OfAdvantage, frozen=True, kw_only=True):
    """Of one group with a gradient under one advantage."""

    group_id: str
    pass_rate: float | None  # its mean reward; None where a reward is missing
    influence: Estimate
    """Mean change of the log-probability of the others' correct answers, in units of groups' effects on their own; on
    held-out prompts, mean product with theirs in units of the mean norms of either."""


class SpectrumLabel(OfStep, frozen=True, kw_only=True):
    """Which gradient matrix a spectrum is of."""

    group_id: str | None = None  # the group whose rollouts are the rows; None for a step
    rows: RowKind  # the kind of a row of the matrix
    advantage: str  # ``logged``, or the formulation that weighs the rows
    group_size: int  # rollouts over which an advantage was computed
    samples: tuple[int, ...] = ()  # which samples of the group are the rows; empty for a step
    tensor: str | None = None  # for ``rows = weight``: the parameter's name
    shape: tuple[int, int]  # rows and columns of the matrix
    centered: bool = False  # whether the mean row was subtracted


class Ranks(Struct, frozen=True, kw_only=True):
    """Rank counts of the singular values s of a matrix; the catalogue has each formula."""

    effective_rank: Estimate  # exp H(s / sum s)
    spectral_entropy_rank: Estimate  # exp H(s^2 / sum s^2)
    stable_rank: Estimate  # sum s^2 / s_1^2
    participation_ratio: Estimate  # (sum s^2)^2 / sum s^4
    numerical_rank: Estimate  # number of singular values above the noise floor
    frac_energy_below_floor: Estimate  # share of sum s^2 below it
    energy_rank_90: Estimate  # fewest singular values with 90 % of sum s^2
    energy_rank_99: Estimate  # fewest singular values with 99 % of sum s^2


class GradientSpectrum(Struct, frozen=True, kw_only=True):
    """The singular values of one gradient matrix and their rank counts."""

    flattened = ("label", "ranks")

    label: SpectrumLabel  # which matrix it is
    singular_values: tuple[float, ...]  # descending
    noise_floor: float  # singular values below this are arithmetic, not signal
    ranks: Ranks  # the eight ranks
    nulls: Mapping[str, Estimate] = {}
    """Effective rank under each null model; empty for the matrix of a single group, whose nulls are in the curve."""
    tokens: TokenRows | None = None
    """For ``rows = token``: how the rows were obtained, and their share of the tokens."""


class StepGeometry(OfStep, frozen=True, kw_only=True):
    """One step's gradient as the optimizer saw it (logged advantage)."""

    weights: str  # the weights that the gradients were computed at
    num_rollouts: int  # R
    num_inferred_ids: int  # rollouts whose token ids were re-tokenized from text
    grad_norm: Estimate  # sqrt(1' G 1), G the Gram of all gradient rows of the step, the KL part included
    logged_grad_norm: float | None  # the trainer's value
    cancellation: Estimate  # |sum of rows| / sum of |row|: 1 when all pull one way, 0 when they cancel
    class_subspace_energy: Estimate
    """Mean over mixed groups of the share of |X|_F^2 in the span of the mean passing and the mean failing row."""
    sparsity: Mapping[str, Estimate]
    """How much of the gradient is (near) zero, by definition: see the catalogue's ``sparsity.*``."""
    verification: Mapping[str, float | str | bool]  # the engine's self-check at this step
    logprob_difference: LogprobDifference | None = None
    """Whether these weights made these rollouts; None where the sampler's log-probabilities were not logged, and where
    an update used the batch before."""


class FormulationUpdate(OfAdvantage, frozen=True, kw_only=True):
    """The update that one formulation makes of a step's rollouts, in the logged groups, without the KL part."""

    update_norm: Estimate  # |sum of A_i s_i|
    cancellation: Estimate  # |sum of rows| / sum of |row|
    between_groups: Estimate  # share of the rows' energy in the groups' means; the rest cancels within groups
    class_subspace_energy: Estimate  # mean over mixed groups of the share of energy in the span of the two class means
    signal_to_noise: Estimate  # |expected update|^2 over the variance of the update, from products of different groups
    critical_batch_size: Estimate  # groups at which the signal equals the noise
    group_cosine: Estimate  # mean cosine between the summed gradients of different groups
    noise_within: Estimate
    """Share of the variance of a prompt's gradient that is due to which rollouts were drawn, at half the group size."""
    alignment: Mapping[str, Estimate]
    """``pass@<k>`` -> cosine of the expected update with the expected gradient of pass@k."""
    cosines: Mapping[str, Estimate]
    """Formulation -> cosine of the two updates of these very rollouts (``update_cosine``)."""


GroupKind = Literal["all_fail", "mixed", "all_pass"]  # of groups with rewards of 0 and 1


class KindUpdate(OfAdvantage, frozen=True, kw_only=True):
    """The contribution of the groups of one kind to the update of one formulation."""

    kind: GroupKind  # which groups
    num_groups: int  # how many there are at this step
    norm: Estimate  # |sum of A_i s_i| over these groups
    cosine: Estimate  # cosine of that sum with the update
    alignment: Mapping[str, Estimate]  # ``pass@<k>`` -> cosine of the expected sum with the expected gradient of pass@k


class GroupShare(OfStep, frozen=True, kw_only=True):
    """The contribution of one group to a step's gradient under the logged advantage."""

    group_id: str
    pass_rate: float | None  # its mean reward; None where a reward is missing
    projection_share: Estimate  # its part of the step's gradient along the gradient; the parts of a step add up to 1
    rollouts: tuple[float, ...]
    """The parts of its rollouts, which add up to the group's; empty where the step has no gradient."""


class BaselineNoise(Struct, frozen=True, kw_only=True):
    """How noisy the gradient is under each baseline, from the diagonal of the Gram matrix."""

    step: int | None  # the trainer's step; None: all computed steps together
    group_id: str | None  # a group whose rewards differ; None: all groups
    num_groups: int  # groups that were counted
    pass_rate: float  # mean reward
    optimal_baseline: Estimate  # E[|s|^2 r] / E[|s|^2]; for several groups the mean over those whose rewards differ
    reward_norm_correlation: Estimate  # correlation of reward and |s|^2 within groups
    relative_noise: Mapping[str, Estimate]
    """Baseline -> second moment of the gradient over that under ``leave_one_out``; below 1 is less noisy."""


class RankComparison(OfStep, frozen=True, kw_only=True):
    """Effective ranks of two formulations at one step, paired by group."""

    group_size: int  # rows of each matrix
    first: str  # one formulation
    second: str  # the other
    difference: Estimate  # mean over groups that live under both of second minus first


class RankReport(Shown, Struct, frozen=True, kw_only=True):
    """Spectra and effective ranks of per-rollout gradients."""

    not_in_document = ("headline",)

    source: Source  # where the rollouts came from
    rows: RowKind  # the kind of a row
    spectra: tuple[GradientSpectrum, ...] = ()  # by step, advantage, group size and group
    curve: tuple[RankCurvePoint, ...] = ()  # ranks over checkpoints, one point per step, advantage and group size
    steps: tuple[StepGeometry, ...] = ()  # by step
    skipped: Mapping[int, str] = {}
    """Steps that were asked for and could not be computed, with the reason."""
    refused: Mapping[str, str] = {}
    """Advantages that were asked for and cannot be computed from these rollouts, with the reason."""
    gram: Mapping[str, str] = {}
    """Step -> file of its Gram matrix of score vectors, where an output folder was given."""
    engine: Mapping[str, object] = {}
    """Engine, dtype, device, number of parameters, coverage, seconds."""
    formulations: tuple[FormulationUpdate, ...] = ()  # by step and advantage
    kinds: tuple[KindUpdate, ...] = ()
    """The contributions of all-fail, mixed and all-pass groups to it, where there are any; rewards of 0 and 1 alone."""
    interference: tuple[Interference, ...] = ()
    """By step and advantage, for rewards of 0 and 1: effects of groups on each other's correct answers."""
    influences: tuple[GroupInfluence, ...] = ()  # of each group with a gradient, under the first advantage
    heldout: tuple[HeldoutTransfer, ...] = ()
    """By step and advantage, where held-out samples were given: effects of groups on their correct answers."""
    heldout_influences: tuple[GroupInfluence, ...] = ()  # of each group with a gradient, under the first advantage
    heldout_notes: tuple[str, ...] = ()  # sentences on the read, drawn and omitted held-out samples
    shares: tuple[GroupShare, ...] = ()  # by step and group
    baselines: tuple[BaselineNoise, ...] = ()  # all steps together, then by step, then by group
    comparisons: tuple[RankComparison, ...] = ()
    """Each distinct formulation against the first one, at the last step and the largest group size."""
    token_curve: tuple[TokenRankPoint, ...] = ()
    """For rows that are tokens: their ranks over checkpoints, one point per step, advantage and group size."""
    weight_curve: tuple[WeightRankPoint, ...] = ()
    """For ``rows = weight``: ranks of dL/dW of one group, one point per step, advantage, group size and weight."""
    size_changes: tuple[SizeChange, ...] = ()
    """With paired groups: how the effective rank changes with the group size, on the same prompts."""
    sparsity: tuple[GradientSparsity, ...] = ()
    """For ``rows = token`` and ``rows = weight``: how much of each step's gradient is (near) zero."""
    updates: tuple[WeightUpdate, ...] = ()
    """For ``rows = update``: changes of weight matrices, since the first checkpoint and between neighbors."""
    trajectories: tuple[UpdateTrajectory, ...] = ()
    """For ``rows = update``: all checkpoints as rows, all matrices together first."""
    gradient_updates: tuple[GradientAndUpdate, ...] = ()
    """For ``rows = weight``: each gradient and the change of its weight up to the next checkpoint."""
    optimizers: tuple[OptimizerStep, ...] = ()
    """For ``rows = weight``: the steps of SGD, Adam and Muon for each gradient, all matrices together first."""
    modules: tuple[ModuleShare, ...] = ()  # for ``rows = weight``: which kinds of modules each step's gradient is in
    adapters: tuple[AdapterState, ...] = ()  # for ``rows = update`` of a LoRA adapter: its factors at each checkpoint
    corrections: tuple[CorrectionEffect, ...] = ()
    """For ``rows = token``: the effect of corrections for the sampling engine on each step."""
    token_kinds: tuple[TokenKind, ...] = ()
    """For ``rows = token``: each step's gradient by advantage sign, probability and entropy of its tokens."""
    entropy_changes: tuple[EntropyChange, ...] = ()  # for ``rows = token``: which way each step moves the entropy
    token_kl: tuple[TokenKl, ...] = ()  # for ``rows = token``: the tokens of each step against the reference policy
    turns: tuple[TurnShare, ...] = ()  # for ``rows = token``: the part of each turn in a step's gradient
    logprob_changes: tuple[LogprobChange, ...] = ()
    """For ``rows = token``: how far the log-probabilities of each step's tokens moved up to the next checkpoint."""
    missing_parts: Mapping[str, str] = {}
    """For ``rows = token``, ``rows = weight`` and held-out samples: what some step lacks of these, by the name of its
    table, with why."""
    findings: tuple[str, ...] = ()  # the meaning of the numbers, in sentences
    headline: tuple[str, ...] = ()
    """The headline: the verdict, then at most three findings."""
