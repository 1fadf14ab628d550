"""One step made ready to measure: its tokens, the trainer's weights and the reference's log-probabilities, made once.

:func:`prepare_step` tokenizes the logged groups, asks the objective for the weight of every token and, where the loss
has a KL term, runs the reference policy. Every kind of rows is then measured from the same :class:`PreparedStep`:
rollouts (``measure_step``), weight matrices (``measure_weight_spectra``), tokens (``measure_tokens``,
``measure_rollout_tokens``). Nothing in it depends on which of them is asked.

Shapes: R rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from gradscope.errors import InputError
from gradscope.gradients.model.batches import BATCH_COST, PaddedBatch, TokenSequence, pad_batch, split_rows
from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens
from gradscope.gradients.model.head import Watch
from gradscope.gradients.model.passes import Past, Weigh, backward, completion_entropies, completion_logprobs
from gradscope.gradients.model.policy import MeasuredPolicy, declared_ends, token_sequences
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.rows import ForwardPasses, RowPlan, plan_rows
from gradscope.gradients.processes import num_connected
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import VERSION_HINT

# Whether a model's output depends on the padding around its rows, and if so the sequences in the trainer's padding.
#
# TRL gives the model a mask and no positions. Models that rotate queries and keys, or count positions by the mask, do
# not see the padding; models with learned positions count what is before the first token, and rotary ones whose
# frequencies change with the padded length see its end. Which of both a model is, is asked of the model.
_SAME = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 2e-2}
"""Largest difference of a log-probability, relative to the largest of them or 1, that is rounding. Rotary models of
2 to 24 layers differ by 0.5e-6 to 1.5e-6 in float32 and 0.02 in bfloat16; frequencies scaled for 8 % more positions by
5e-5, learned positions by 0.1 and more."""


def as_trained(policy: MeasuredPolicy, sequences: Sequence[TokenSequence]) -> tuple[TokenSequence, ...]:
    """The sequences of a step, [R], in the trainer's padding where the model's output depends on it."""
    if policy.padding is None:
        return tuple(sequences)
    framed = policy.padding.framed(sequences, _padding_id_of(policy))
    if scales_with_width(policy.model):
        return framed
    furthest = max(framed, key=lambda sequence: sequence.start)
    if furthest.length == furthest.num_tokens:
        return tuple(sequences)
    pair = (replace(furthest, frame=None), furthest)
    with torch.no_grad():
        batches = [pad_batch([0], [sequence], policy.device) for sequence in pair]
        ((unpadded,), (padded,)) = (completion_logprobs(policy.model, batch, 1.0) for batch in batches)
    scale = max(1.0, float(unpadded.abs().max()))
    is_same = bool((unpadded - padded).abs().max() <= _SAME[policy.dtype] * scale)
    return tuple(sequences) if is_same else framed


def scales_with_width(model: Any) -> bool:
    """Whether rotary frequencies change with the padded length of a batch (dynamic scaling and longrope).

    The change may be as small as rounding where a batch is hardly longer, so it is not left to a comparison.
    """
    kinds = [getattr(module, "rope_type", None) for module in model.modules()]
    names = {name for kind in kinds for name in (kind.values() if isinstance(kind, dict) else (kind,))}
    return bool(names & {"dynamic", "longrope"})


def pretrained_length(model: Any) -> int | None:
    """The positions up to which nothing is scaled; None where no module scales dynamically."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            return int(module.config.max_position_embeddings)
    return None


def see_batch(model: Any, length: int) -> None:
    """Let a model see a batch of a length, whose rotary frequencies it keeps until a longer one comes."""
    device = next(model.parameters()).device
    with torch.no_grad():
        model(input_ids=torch.zeros(1, length, dtype=torch.long, device=device))
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.original_max_seq_len = 0  # else a shorter sequence, such as a probe of three tokens, undoes it


def _padding_id_of(policy: MeasuredPolicy) -> int:
    """The token that the trainer pads with: the tokenizer's, else its end-of-sequence token, as TRL has it."""
    config = policy.model.config.get_text_config()
    candidates = [getattr(policy.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id")]
    token_ids = [token for token in (*candidates, getattr(config, "pad_token_id", None)) if isinstance(token, int)]
    return next((token for token in token_ids if 0 <= token < policy.vocab_size), 0)


# Which completions were cut at the trainer's limit, derived from their exact ids as TRL does.
#
# A completion that ends neither with an end-of-sequence token nor with padding was cut. TRL takes the tokenizer's token
# for the end of a sequence, and since 1.15 those of the model's generation configuration too.
_UNTOLD = "Truncated completions leave the loss, and which were truncated cannot be told"


def _with_status(rollout: Rollout, policy: MeasuredPolicy, objective: Objective) -> Rollout:
    """A rollout that says how it ended, where the loss asks for it and the log does not say."""
    if not objective.mask_truncated or rollout.status != "unknown" or not rollout.completion_ids:
        return rollout
    end, padding = (getattr(policy.tokenizer, name, None) for name in ("eos_token_id", "pad_token_id"))
    ends = frozenset() if end is None else frozenset({end, end if padding is None else padding})
    declared, last = declared_ends(policy.model), rollout.completion_ids[-1]
    if not ends:
        raise InputError(
            f"{_UNTOLD}: no tokenizer with an end-of-sequence token was found.",
            hint="Put tokenizer.json and tokenizer_config.json beside the weights.",
            cause="truncation_unknown",
        )
    if last in declared - ends and not objective.trl.is_known:
        raise InputError(
            f"{_UNTOLD}: whether token {last} ends a completion depends on TRL's version, which is not known.",
            hint=VERSION_HINT,
            cause="settings_unknown",
        )
    complete = last in (ends if objective.trl.is_before(1, 15) else ends | declared)
    return replace(rollout, status="completed" if complete else "truncated")


class PreparedStep(Struct, frozen=True, kw_only=True):
    """The rollouts of one step, the weights that they were sampled from, and the rows that they make."""

    step: int
    groups: tuple[RolloutGroup, ...]
    policy: MeasuredPolicy  # the weights that the step's update started from
    plan: RowPlan  # the rows, with the reference's log-probabilities where the loss has a KL term
    budget: TokenBudget  # most padded tokens of a forward pass; lowered for good where memory ran out

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts of all groups, in the order of the plan's sequences."""
        return _rollouts(self.groups)

    @property
    def shortest(self) -> TokenSequence:
        """The rollout that costs least to look at."""
        return min(self.plan.sequences, key=lambda sequence: sequence.num_tokens)

    def batches(self, rows: Sequence[int], batch_tokens: int) -> list[PaddedBatch]:
        """Some rows of the plan, by index, each in one batch of at most ``batch_tokens`` padded tokens."""
        lengths = self.plan.lengths
        # on a GPU pending parts move to the CPU, and several processes gather all weights for each batch
        cost = BATCH_COST if self.policy.device.type == "cpu" and num_connected() == 1 else None
        parts = split_rows([lengths[row] for row in rows], batch_tokens, cost)
        return [self.batch([rows[i] for i in part]) for part in parts]

    def batch(self, rows: Sequence[int]) -> PaddedBatch:
        """Some rows of the plan, by index, in one batch."""
        sequences = [self.plan.sequences[self.plan.rows[row].sequence] for row in rows]
        return pad_batch(rows, sequences, self.policy.device)

    def check_batch(self, rows: Sequence[int]) -> PaddedBatch:
        """Some rows of the plan, by index, in a batch that no engine forms: shortest first, in a length that none has.

        A model whose rows depend on other rows or on padding gives another result for it alone. Rows in a
        trainer's frame stay in it.
        """
        lengths = self.plan.lengths
        order = sorted(rows, key=lambda row: (lengths[row], -row))
        if self.plan.sequences[0].frame is not None:
            return self.batch(order)
        length = next(length for length in count(lengths[order[-1]] + 1) if length not in lengths)
        sequences = [self.plan.sequences[self.plan.rows[row].sequence] for row in order]
        return pad_batch(order, sequences, self.policy.device, length=length)

    def backward(
        self,
        batch: PaddedBatch,
        weigh: Weigh,
        consume: Callable[[str, torch.Tensor], None],
        parameters: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        """An ordinary backward pass of rows in a batch, by all trainable parameters or some; see :func:`backward`."""
        trainable = self.policy.trainable if parameters is None else parameters
        temperature, entropies = self.plan.objective.temperature, self.plan.has_entropies
        backward(self.policy.model, trainable, batch, temperature, weigh, consume, entropies=entropies)

    def outputs(
        self, batch: PaddedBatch, *, past: Past | None = None, watch: Watch | None = None
    ) -> list[torch.Tensor]:
        """The outputs of rows in a batch with their graph, [B][T], or [B][2 T] where rows weigh entropies too."""
        temperature, entropies = self.plan.objective.temperature, self.plan.has_entropies
        return completion_logprobs(self.policy.model, batch, temperature, past=past, entropies=entropies, watch=watch)

    def framed(self) -> PreparedStep:
        """The same step in the trainer's padding, whether or not its model was seen to depend on it."""
        sequences, padding = self.plan.sequences, self.policy.padding
        if padding is None or any(sequence.frame for sequence in sequences):
            return self
        framed = padding.framed(sequences, _padding_id_of(self.policy))
        return replace(self, plan=replace(self.plan, sequences=framed))

    def planned_with(self, passes: ForwardPasses) -> PreparedStep:
        """The same step with other results of forward passes, such as those of a lower precision."""
        rollouts = [_with_status(rollout, self.policy, self.plan.objective) for rollout in self.rollouts]
        return replace(self, plan=plan_rows(self.plan.sequences, rollouts, self.plan.objective, passes))


def prepare_step(
    policy: MeasuredPolicy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    budget: TokenBudget | None = None,
    old: Sequence[torch.Tensor] | None = None,
) -> PreparedStep:
    """Everything that measuring one step starts from; with a KL term the reference policy runs over all rollouts.

    Raises:
        ValueError: The groups are not of one step, or there are none.
        InputError: The trainer's gradient cannot be formed from these rollouts and settings.
    """
    steps = sorted({group.step for group in groups})
    if len(steps) != 1:
        raise ValueError(f"expected the groups of one step, got steps {steps}")
    rollouts = [_with_status(rollout, policy, objective) for rollout in _rollouts(groups)]
    reason = objective.reason_against(rollouts, has_old=old is not None)
    if reason is not None:
        raise InputError(
            f"Step {steps[0]}: the trainer's gradient cannot be formed: {reason}.",
            hint=reason.advice,
            cause=reason.cause,
        )
    budget = budget or TokenBudget(first_batch_tokens(policy))
    sequences = sequences_of(policy, groups, objective)
    run = partial(_run_all, device=policy.device, sequences=sequences, objective=objective, budget=budget)
    reference = None
    if objective.has_reference:
        with policy.as_reference() as model:
            reference = run(model, completion_logprobs)
    is_masked = objective.top_entropy_quantile < 1.0
    passes = ForwardPasses(
        reference=reference,
        old=old if objective.importance_ratio else None,
        entropies=run(policy.model, completion_entropies) if is_masked else None,
    )
    plan = plan_rows(sequences, rollouts, objective, passes)
    return PreparedStep(step=steps[0], groups=tuple(groups), policy=policy, plan=plan, budget=budget)


def sequences_of(
    policy: MeasuredPolicy, groups: Sequence[RolloutGroup], objective: Objective
) -> tuple[TokenSequence, ...]:
    """The rollouts of a step as the trainer's forward pass saw them."""
    sequences = token_sequences(
        policy,
        groups,
        max_completion_length=objective.max_completion_length,
        chat_template_kwargs=objective.chat_template_kwargs,
    )
    return as_trained(policy, sequences)


def step_logprobs(
    policy: MeasuredPolicy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    budget: TokenBudget,
    *,
    entropies: bool = False,
) -> list[torch.Tensor]:
    """Log-probabilities of a step's completions under some weights, [R][T], or [R][2 T] with entropies behind them."""
    sequences, run = sequences_of(policy, groups, objective), partial(completion_logprobs, entropies=entropies)
    return _run_all(policy.model, run, device=policy.device, sequences=sequences, objective=objective, budget=budget)


def _rollouts(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def _run_all(
    model: Any,
    run: Callable[[Any, PaddedBatch, float], list[torch.Tensor]],
    *,
    device: torch.device,
    sequences: Sequence[TokenSequence],
    objective: Objective,
    budget: TokenBudget,
) -> list[torch.Tensor]:
    """Numbers of every completion token, by forward passes alone, [R][T]."""
    lengths = [sequence.length for sequence in sequences]

    def attempt(batch_tokens: int) -> list[torch.Tensor]:
        by_row: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for rows in split_rows(lengths, batch_tokens):
                batch = pad_batch(rows, [sequences[row] for row in rows], device)
                by_row.update(zip(rows, run(model, batch, objective.temperature), strict=True))
        return [by_row[row] for row in range(len(sequences))]

    return budget.fit(lengths, attempt)
