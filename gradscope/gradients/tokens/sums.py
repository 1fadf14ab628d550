"""Sums of a step's token gradients, each under its own weights, and the angles between them.

A correction for another sampler, a mask on tokens, a turn: each is the same gradients of tokens under other weights. So
each is one more backward pass, and all questions about them are arithmetic on the Gram matrix of the sums by
group so that groups can be left out.

Shapes: N tokens that count, R rollouts of the step, V weightings, J groups, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import nn

from gradscope.gradients.engines.loop import GramAccumulator, parameter_blocks, row_bytes
from gradscope.gradients.engines.stream import stream_gram
from gradscope.gradients.model.batches import pad_batch, split_rows
from gradscope.gradients.model.passes import add_gradients, completion_logprobs, gradients_on, row_buffers
from gradscope.gradients.model.sharding import require_one_process
from gradscope.gradients.plan.losses import Completion, SamplerCorrection, reward_slope
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row, RowPlan
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import policy_entropies
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress

Index = NDArray[np.int64]


class CountedTokens(Struct, frozen=True, kw_only=True):
    """The tokens, rollout after rollout."""

    rollouts: Index  # which rollout of the step each is of, [N]
    groups: Index  # which group, from 0 to J - 1, [N]
    positions: Index  # its position in its completion, from 0, [N]
    turns: Index
    """Its turn, from 0: a turn is a stretch of sampled tokens, and ends where a tool or an environment writes, [N]."""
    logprobs: Array  # log pi of the policy, [N]
    entropies: Array  # the policy's entropy where it was sampled, in nats, [N]
    sampler: Array | None
    """The sampler's log-probability, the policy's own where it is not a number, [N]; None unless every rollout has
    them."""
    reference: Array | None  # log pi of the reference policy, [N]; None without a KL term
    advantages: Array  # [N]
    weights: Array  # factors on grad log pi in the reward part of the gradient that the optimizer saw, [N]
    on_policy_weights: Array
    """The same at ratio 1: without importance ratio, clip and correction, as if the policy itself had sampled, [N]."""
    lengths: tuple[int, ...]  # completion tokens of every rollout, those that do not count among them, [R]

    @property
    def num_groups(self) -> int:
        """J, of the groups that have a token."""
        return int(self.groups.max(initial=-1)) + 1


def counted_tokens(prepared: PreparedStep, step: StepGram) -> CountedTokens | None:
    """The tokens of a step; None where the gradient is zero, not every token has a logged advantage, or none counts."""
    if step.policy_gram is None or not step.policy_gram.sum() > 0:
        return None
    plan = prepared.plan
    counted = [completion.counted.bool().numpy() for completion in plan.completions]
    if any(advantages is None for advantages in plan.advantages) or not any(mask.any() for mask in counted):
        return None
    entropies = policy_entropies(prepared.policy, plan, range(len(counted)), step.batch_tokens)
    group_of = [number for number, group in enumerate(prepared.groups) for _ in group.rollouts]

    def gathered(values: Callable[[int], Array | Index]) -> Array:
        return np.concatenate([np.asarray(values(i), dtype=np.float64)[mask] for i, mask in enumerate(counted)])

    def numbered(values: Callable[[int], Array | Index]) -> Index:
        return gathered(values).astype(np.int64)

    def turns(mask: Sequence[bool]) -> Index:
        # tokens that were not sampled have the turn before
        sampled = np.array(mask, dtype=np.int64)
        return np.asarray(np.maximum(np.cumsum(np.diff(sampled, prepend=0) == 1) - 1, 0))

    logprobs = [torch.tensor(row) for row in step.logprobs]
    logged = zip(prepared.rollouts, step.logprobs, strict=True)
    sampled = [values for rollout, row in logged if (values := _sampled(rollout.logprobs, row)) is not None]
    has_reference = plan.objective.has_reference  # a KL term to the sampler has none
    reference = [completion.reference if has_reference else None for completion in plan.completions]
    return CountedTokens(
        rollouts=numbered(lambda i: np.full(len(counted[i]), i)),
        groups=np.unique(numbered(lambda i: np.full(len(counted[i]), group_of[i])), return_inverse=True)[1],
        positions=numbered(lambda i: np.arange(len(counted[i]))),
        turns=numbered(lambda i: turns(plan.sequences[i].mask)),
        logprobs=gathered(lambda i: step.logprobs[i]),
        entropies=gathered(lambda i: entropies[i]),
        sampler=gathered(sampled.__getitem__) if len(sampled) == len(counted) else None,
        reference=None if any(value is None for value in reference) else gathered(lambda i: _numbers(reference[i])),
        advantages=gathered(lambda i: _numbers(plan.advantages[i])),
        weights=gathered(lambda i: _numbers(plan.cotangent(Row(sequence=i, channel="logged"), logprobs[i]))),
        on_policy_weights=gathered(lambda i: _numbers(_at_ratio_one(plan, i, logprobs[i]))),
        lengths=tuple(map(len, counted)),
    )


def _at_ratio_one(plan: RowPlan, sequence: int, logprobs: torch.Tensor) -> torch.Tensor:
    """The slope of the loss of one completion where every ratio is 1, [T]."""
    advantages = plan.advantages[sequence]
    assert advantages is not None, "the caller asks for steps with logged advantages"
    completion = Completion(counted=plan.completions[sequence].counted.to(logprobs))
    weights, loss = plan.weights[sequence].to(logprobs), plan.objective.loss
    return reward_slope(loss, plan.objective, completion, logprobs, weights, advantages.to(logprobs))


def _sampled(logged: Sequence[float] | None, policy: Array) -> Array | None:
    """The sampler's log-probabilities; the policy's own where it gave none."""
    if logged is None or len(logged) != len(policy):
        return None
    values = np.array(logged, dtype=np.float64)
    return np.where(np.isfinite(values), values, policy)


def _numbers(values: torch.Tensor | None) -> Array:
    assert values is not None, "the caller looks before"
    return np.asarray(values.double().cpu().numpy(), dtype=np.float64)


def measure_token_sums(
    prepared: PreparedStep,
    tokens: CountedTokens,
    weights: Array,
    is_entropy: NDArray[np.bool_],
    *,
    progress: ProgressCallback = no_progress,
) -> Array:
    """Inner products of sum_t w_vt grad log pi(token t) over a group's tokens, by weighting and group, [V, J, V, J].

    Where the sums by all parameters take more than the budget's memory for rows, layers are processed one by one, and
    parameters without a layer rule in blocks.

    Args:
        weights: Factors on each token's gradient, one row a weighting, [V, N].
        is_entropy: Which weightings weigh grad of the entropies where tokens were sampled instead, [V].
    """
    require_one_process("Sums of tokens are")
    outputs = _outputs(tokens, weights, is_entropy)
    num_groups, device = tokens.num_groups, prepared.policy.device
    num_rows, trainable, budget = len(weights) * num_groups, prepared.policy.trainable, prepared.budget
    lengths = prepared.plan.lengths[: len(tokens.lengths)]
    max_bytes, entropies = budget.row_bytes, bool(is_entropy.any())
    by_layer = row_bytes(num_rows, trainable) > max_bytes

    def attempt(batch_tokens: int) -> Array:
        group_of = dict(zip(tokens.rollouts.tolist(), tokens.groups.tolist(), strict=True))
        rows = [
            (number * tokens.num_groups + group_of[sequence], Row(sequence=sequence, channel="logged", weights=weights))
            for number, sequence_weights in enumerate(outputs)
            for sequence, weights in enumerate(sequence_weights)
            if weights.any()
        ]
        total = GramAccumulator(num_rows, device, row_targets=[target for target, _ in rows])
        remaining = trainable
        if by_layer:
            plan = prepared.plan
            entropy_weights = plan.weights if entropies else None  # says that rows weigh them; theirs are in rows
            plan = replace(plan, rows=tuple(row for _, row in rows), entropy_weights=entropy_weights)
            weighed = replace(prepared, plan=plan)
            slow = stream_gram(weighed, weighed.batches(range(len(rows)), batch_tokens), total, lambda _, __: None)
            remaining = {name: trainable[name] for name in sorted(slow)}
        blocks = list(parameter_blocks(remaining, num_rows, max_bytes))
        for done, block in enumerate(blocks):
            _by_group(prepared, tokens, outputs, block, batch_tokens, total, entropies=entropies)
            progress(done + 1, len(blocks), "blocks of parameters")
        return np.asarray(total.gram.cpu().numpy())

    return budget.fit(lengths, attempt).reshape(len(weights), num_groups, len(weights), num_groups)


Outputs = list[list[torch.Tensor]]
"""Each weighting's weights of the outputs of each sequence, [V][R][T], or [V][R][2 T] with entropies."""


def _outputs(tokens: CountedTokens, weights: Array, is_entropy: NDArray[np.bool_]) -> Outputs:
    ends = np.cumsum(tokens.lengths)
    starts, num_tokens, halves = ends - tokens.lengths, int(ends[-1]), 1 + bool(is_entropy.any())
    columns, outputs = starts[tokens.rollouts] + tokens.positions, []
    for row, by_entropy in zip(weights, is_entropy, strict=True):
        spread = np.zeros((halves, num_tokens))
        spread[int(by_entropy), columns] = row
        outputs.append([torch.from_numpy(part.flatten()) for part in np.split(spread, ends[:-1], axis=1)])
    return outputs


def _by_group(
    prepared: PreparedStep,
    tokens: CountedTokens,
    outputs: Outputs,
    block: Mapping[str, nn.Parameter],
    batch_tokens: int,
    total: GramAccumulator,
    *,
    entropies: bool,
) -> None:
    """Add some parameters: a forward pass a group serves one backward pass a weighting."""
    policy, plan, parameters = prepared.policy, prepared.plan, list(block.values())
    buffers = row_buffers(parameters, total.num_rows)
    with gradients_on(block, on=True):
        for group in range(tokens.num_groups):
            members = np.unique(tokens.rollouts[tokens.groups == group]).tolist()
            for part in split_rows([plan.sequences[member].length for member in members], batch_tokens):
                chosen = [members[index] for index in part]
                batch = pad_batch(chosen, [plan.sequences[member] for member in chosen], policy.device)
                values = torch.cat(
                    completion_logprobs(policy.model, batch, plan.objective.temperature, entropies=entropies)
                )
                weighings = [torch.cat([row[member] for member in chosen]) for row in outputs]
                live = [number for number, row in enumerate(weighings) if row.any()]
                for number in live:
                    row, weights = number * tokens.num_groups + group, weighings[number].to(values)
                    add_gradients(buffers, row, values, parameters, weights, is_last=number == live[-1])
    while buffers:
        total.add_rows(buffers.pop(0))


UNCORRECTED = "none"  # where every token keeps its own weight, as if the policy itself had sampled
UNBIASED = "sequence_ratio"  # whose expectation under the sampler is the gradient on policy
_TRL_BOUND = 3.0  # TRL's ``vllm_importance_sampling_clip_max``

CORRECTIONS: Mapping[str, SamplerCorrection | None] = {
    UNCORRECTED: None,
    "token_ratio": SamplerCorrection(mode="token_truncate", low=None, high=None),
    "tis": SamplerCorrection(mode="token_truncate", low=None, high=2.0),
    "icepop": SamplerCorrection(mode="token_mask", low=0.5, high=5.0),
    "mis": SamplerCorrection(mode="token_mask", low=0.5, high=2.0),
    "token_mask": SamplerCorrection(mode="token_mask", low=None, high=_TRL_BOUND),
    "sequence_truncate": SamplerCorrection(mode="sequence_truncate", low=None, high=_TRL_BOUND),
    "sequence_mask": SamplerCorrection(mode="sequence_mask", low=None, high=_TRL_BOUND),
    "geometric_mask": SamplerCorrection(mode="sequence_mask", low=1 / 1.001, high=1.001, geometric=True),
    UNBIASED: SamplerCorrection(mode="sequence_truncate", low=None, high=None),
}
"""Name -> the correction. ``tis`` has the bound of verl's ``rollout_is_threshold``, ``icepop`` its usual band [0.5, 5],
``mis`` that of slime's masked importance sampling, ``geometric_mask`` the widest that verl recommends for geometric
means, the others the bound of TRL."""


def corrected(tokens: CountedTokens, sampler: Array, correction: SamplerCorrection | None) -> Array:
    """A correction's factor on each token's gradient, infinite beyond floating point, [N].

    It is one factor for all tokens of a rollout where ratios are of sequences. ``sampler`` is the sampler's
    log-probability of each token, [N].
    """
    if correction is None:
        return np.ones(len(sampler))
    factors = np.ones(len(sampler))
    for rollout in np.unique(tokens.rollouts):
        is_member = tokens.rollouts == rollout
        policy, logged = torch.from_numpy(tokens.logprobs[is_member]), torch.from_numpy(sampler[is_member])
        factors[is_member] = correction.ratio(logged, policy, torch.ones_like(policy)).numpy()
    return factors


def sequence_factors(gaps: Sequence[Array]) -> dict[str, Array]:
    """Factors on rollouts of each correction by sequence, and of :data:`UNCORRECTED`, infinite beyond floats, [R].

    ``gaps`` are the policy's log-probabilities minus the sampler's, 0 where a token does not count, [R][T].
    """
    tensors = [torch.from_numpy(np.asarray(gap, dtype=np.float64)) for gap in gaps]
    factors = {UNCORRECTED: np.ones(len(tensors))}
    for name, correction in CORRECTIONS.items():
        if correction is not None and correction.by_sequence:
            ratios = [float(correction.ratio(torch.zeros_like(gap), gap, torch.ones_like(gap))) for gap in tensors]
            factors[name] = np.array(ratios)
    return factors
