"""What `gradscope rank` finds. Shapes: R rollouts, G group size, P parameters, N rows of the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gradscope.estimate import Estimate
from gradscope.results.envelope import FLATTENED, NOT_IN_DOCUMENT
from gradscope.results.ranks.curves import RankCurvePoint, SizeChange, TokenRankPoint, WeightRankPoint
from gradscope.results.ranks.heldout import HeldoutInfluence, HeldoutTransfer
from gradscope.results.ranks.interference import Interference, PromptInfluence
from gradscope.results.ranks.token_parts import (
    CorrectionEffect,
    EntropyChange,
    LogprobChange,
    TokenKind,
    TokenKl,
    TurnShare,
)
from gradscope.results.ranks.tokens import GradientSparsity, TokenRows
from gradscope.results.replay import LogprobDifference
from gradscope.results.source import Source
from gradscope.results.update import (
    AdapterState,
    GradientAndUpdate,
    ModuleShare,
    OptimizerStep,
    UpdateTrajectory,
    WeightUpdate,
)
from gradscope.shown import Drawn

RowKind = Literal["rollout", "group", "token", "weight", "hidden", "logit", "advantage", "update"]
"""Which matrix: rows of ``rollout``, ``group`` and ``token`` are gradients by all parameters, those of ``weight`` the
outputs of one matrix's; ``hidden`` and ``logit`` are gradients by the last hidden state and by the logits, of tokens
and of rollouts; ``advantage`` is the advantages themselves, rollouts by tokens; ``update`` the change of a weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpectrumLabel:
    """Which gradient matrix a spectrum is of."""

    step: int
    """The trainer's step."""
    group_id: str | None = None
    """The group whose rollouts are the rows; None for a whole step."""
    rows: RowKind
    """What a row of the matrix is."""
    advantage: str
    """``logged``, or the formulation that weighs the rows."""
    group_size: int
    """Rollouts over which an advantage was computed."""
    samples: tuple[int, ...] = ()
    """Which samples of the group are the rows; empty for a whole step."""
    tensor: str | None = None
    """For ``rows = weight``: the parameter's name."""
    shape: tuple[int, int]
    """Rows and columns of the matrix."""
    centered: bool = False
    """Whether the mean row was subtracted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What the singular values s of a matrix count as; the catalogue has each formula."""

    effective_rank: Estimate
    """exp H(s / sum s)."""
    spectral_entropy_rank: Estimate
    """exp H(s^2 / sum s^2)."""
    stable_rank: Estimate
    """sum s^2 / s_1^2."""
    participation_ratio: Estimate
    """(sum s^2)^2 / sum s^4."""
    numerical_rank: Estimate
    """Number of singular values above the noise floor."""
    frac_energy_below_floor: Estimate
    """Share of sum s^2 that lies under it."""
    energy_rank_90: Estimate
    """Fewest singular values with 90 % of sum s^2."""
    energy_rank_99: Estimate
    """Fewest singular values with 99 % of sum s^2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSpectrum:
    """The singular values of one gradient matrix and what they count as."""

    label: SpectrumLabel = field(metadata=FLATTENED)
    """Which matrix it is."""
    singular_values: tuple[float, ...]
    """Descending."""
    noise_floor: float
    """Singular values below this are arithmetic, not signal."""
    ranks: Ranks = field(metadata=FLATTENED)
    """The eight ranks."""
    nulls: Mapping[str, Estimate] = field(default_factory=dict)
    """Effective rank under each null model; empty for the matrix of a single group, whose nulls stand in the curve."""
    tokens: TokenRows | None = None
    """For ``rows = token``: how the rows were had, and what share of the tokens they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGeometry:
    """One step's gradient as the optimizer saw it (logged advantage)."""

    step: int
    """The trainer's step."""
    weights: str
    """The weights that the gradients were computed at."""
    num_rollouts: int
    """R."""
    num_inferred_ids: int
    """Rollouts whose token ids were re-tokenized from text."""
    grad_norm: Estimate
    """sqrt(1' G 1), G the Gram of all gradient rows of the step, the KL part included."""
    logged_grad_norm: float | None
    """What the trainer logged."""
    cancellation: Estimate
    """|sum of rows| / sum of |row|: 1 when all pull one way, 0 when they cancel."""
    class_subspace_energy: Estimate
    """Mean over mixed groups of the share of |X|_F^2 in the span of the mean passing and the mean failing row."""
    sparsity: Mapping[str, Estimate]
    """How much of the gradient is (near) zero, by definition: see the catalogue's ``sparsity.*``."""
    verification: Mapping[str, float | str | bool]
    """The engine's self-check at this step."""
    logprob_difference: LogprobDifference | None = None
    """Whether these weights made these rollouts; None where the sampler's log-probabilities were not logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulationUpdate:
    """The update that one formulation makes of a step's rollouts, in the logged groups, without the KL part."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    update_norm: Estimate
    """|sum of A_i s_i|."""
    cancellation: Estimate
    """|sum of rows| / sum of |row|."""
    between_groups: Estimate
    """Share of the rows' energy in the groups' means; the rest cancels within groups."""
    class_subspace_energy: Estimate
    """Mean over mixed groups of the share of energy in the span of the two class means."""
    signal_to_noise: Estimate
    """|expected update|^2 over the variance of the update, from products of different groups."""
    critical_batch_size: Estimate
    """Groups at which the signal equals the noise."""
    group_cosine: Estimate
    """Mean cosine between the summed gradients of different groups."""
    noise_within: Estimate
    """Share of the variance of a prompt's gradient that is due to which rollouts were drawn, at half the group size."""
    alignment: Mapping[str, Estimate]
    """``pass@<k>`` -> cosine of the expected update with the expected gradient of pass@k."""
    cosines: Mapping[str, Estimate]
    """Formulation -> cosine of the two updates of these very rollouts (``update_cosine``)."""


GroupKind = Literal["all_fail", "mixed", "all_pass"]
"""Of groups with rewards of 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindUpdate:
    """What the groups of one kind give to the update of one formulation."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    kind: GroupKind
    """Which groups."""
    num_groups: int
    """How many there are at this step."""
    norm: Estimate
    """|sum of A_i s_i| over these groups."""
    cosine: Estimate
    """Cosine of that sum with the whole update."""
    alignment: Mapping[str, Estimate]
    """``pass@<k>`` -> cosine of the expected sum with the expected gradient of pass@k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """What one group gives to a step's gradient under the logged advantage."""

    step: int
    """The trainer's step."""
    group_id: str
    """The group."""
    pass_rate: float | None
    """Its mean reward; None where a reward is missing."""
    projection_share: Estimate
    """Its part of the step's gradient along the gradient; the parts of a step add up to 1."""
    rollouts: tuple[float, ...]
    """The parts of its rollouts, which add up to the group's; empty where the step has no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineNoise:
    """How noisy the gradient is under each baseline, from the diagonal of the Gram matrix."""

    step: int | None
    """The trainer's step; None: all computed steps together."""
    group_id: str | None
    """A group whose rewards differ; None: all groups."""
    num_groups: int
    """Groups that were counted."""
    pass_rate: float
    """Mean reward."""
    optimal_baseline: Estimate
    """E[|s|^2 r] / E[|s|^2]; for several groups the mean over those whose rewards differ."""
    reward_norm_correlation: Estimate
    """Correlation of reward and |s|^2 within groups."""
    relative_noise: Mapping[str, Estimate]
    """Baseline -> second moment of the gradient over that under ``leave_one_out``; below 1 is less noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComparison:
    """Effective ranks of two formulations at one step, paired by group."""

    step: int
    """The trainer's step."""
    group_size: int
    """Rows of each matrix."""
    first: str
    """One formulation."""
    second: str
    """The other."""
    difference: Estimate
    """Mean over groups that live under both of second minus first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RankReport(Drawn):
    """Spectra and effective ranks of per-rollout gradients."""

    source: Source
    """Where the rollouts came from."""
    rows: RowKind
    """What a row is."""
    spectra: tuple[GradientSpectrum, ...]
    """By step, advantage, group size and group."""
    curve: tuple[RankCurvePoint, ...]
    """Effective rank over checkpoints, one point per step, advantage and group size."""
    steps: tuple[StepGeometry, ...]
    """By step."""
    skipped: Mapping[int, str]
    """Steps that were asked for and could not be computed, with the reason."""
    refused: Mapping[str, str]
    """Advantages that were asked for and cannot be computed from these rollouts, with the reason."""
    gram: Mapping[str, str]
    """Step -> file of its Gram matrix of score vectors, where an output folder was given."""
    engine: Mapping[str, object]
    """Engine, dtype, device, number of parameters, coverage, seconds."""
    formulations: tuple[FormulationUpdate, ...] = ()
    """By step and advantage."""
    kinds: tuple[KindUpdate, ...] = ()
    """What all-fail, mixed and all-pass groups give to it, of the kinds that there are; rewards of 0 and 1 alone."""
    interference: tuple[Interference, ...] = ()
    """By step and advantage, for rewards of 0 and 1: what groups do to each other's correct answers."""
    influences: tuple[PromptInfluence, ...] = ()
    """Of each group with a gradient, under the first advantage."""
    heldout: tuple[HeldoutTransfer, ...] = ()
    """By step and advantage, where held-out samples were given: what groups do to their correct answers."""
    heldout_influences: tuple[HeldoutInfluence, ...] = ()
    """Of each group with a gradient, under the first advantage."""
    heldout_notes: tuple[str, ...] = ()
    """What was read, drawn and left out of the held-out samples, in sentences."""
    shares: tuple[GroupShare, ...] = ()
    """By step and group."""
    baselines: tuple[BaselineNoise, ...] = ()
    """All steps together, then by step, then by group."""
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
    """For ``rows = weight``: each gradient beside the change of its weight up to the next checkpoint."""
    optimizers: tuple[OptimizerStep, ...] = ()
    """For ``rows = weight``: what SGD, Adam and Muon would make of each gradient, all matrices together first."""
    modules: tuple[ModuleShare, ...] = ()
    """For ``rows = weight``: which kinds of modules each step's gradient is in."""
    adapters: tuple[AdapterState, ...] = ()
    """For ``rows = update`` of a LoRA adapter: its factors at each checkpoint."""
    corrections: tuple[CorrectionEffect, ...] = ()
    """For ``rows = token``: what corrections for the engine that sampled make of each step."""
    token_kinds: tuple[TokenKind, ...] = ()
    """For ``rows = token``: each step's gradient by advantage sign, probability and entropy of its tokens."""
    entropy_changes: tuple[EntropyChange, ...] = ()
    """For ``rows = token``: which way each step moves the entropy."""
    token_kl: tuple[TokenKl, ...] = ()
    """For ``rows = token``: the tokens of each step beside the reference policy."""
    turns: tuple[TurnShare, ...] = ()
    """For ``rows = token``: the part of each turn in a step's gradient."""
    logprob_changes: tuple[LogprobChange, ...] = ()
    """For ``rows = token``: how far the log-probabilities of each step's tokens moved up to the next checkpoint."""
    missing_parts: Mapping[str, str] = field(default_factory=dict)
    """For ``rows = token``, ``rows = weight`` and held-out samples: what some step lacks of these, by the name of its
    table, with why."""
    findings: tuple[str, ...] = ()
    """What the numbers say, in sentences for people."""
    headline: tuple[str, ...] = field(default=(), metadata=NOT_IN_DOCUMENT)
    """What to read first: the verdict, then at most three findings."""
