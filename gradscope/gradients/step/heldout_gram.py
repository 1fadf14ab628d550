"""Inner products of a step's score vectors with the gradients of held-out answers, by the same engines.

The answers join the step's rollouts as further rows, each with weight 1 on every sampled token, times its share among
the correct samples of its prompt. So it costs the step's passes once more, and one an answer. The step's own Gram
matrix, its loss and its self-check are measured without them; that of its rows among the others must agree with it.

Shapes: R rollouts of the step, H held-out answers, M prompts that they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from gradscope.gradients.engine_options import Engine, Verify
from gradscope.gradients.model.precision import uses_tf32
from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row, RowPlan
from gradscope.gradients.step.heldout_answers import HeldoutSequences, heldout_sequences
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.step.verify import require_agreement, tolerance
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.types import RolloutGroup

_EVEN = 1e-6
"""Weights of the tokens of an answer that differ by less, relative to the largest, are one weight and its rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutGram:
    """The rollouts of a step beside the correct samples of held-out prompts.

    C_k is the mean gradient of the log-probability of those of prompt k.
    """

    cross: Array
    """Score vectors of the step's rollouts times C_k, [R, M]."""
    norms: Array
    """|C_k|, [M]."""
    scales: Array | None
    """What makes the gradient of a rollout's log-probability of its score vector, 0 where the loss leaves it out, [R];
    None where the loss weighs the tokens of a rollout unequally."""
    num_answers: int
    """Distinct answers, H."""
    notes: tuple[str, ...]
    """What was left out, and what may be inexact, in sentences."""


def measure_heldout_gram(
    prepared: PreparedStep,
    step: StepGram,
    prompts: Sequence[RolloutGroup],
    shares: Sequence[Sequence[float]],
    *,
    engine: Engine = "auto",
    verify: Verify = "first",
    progress: ProgressCallback = no_progress,
) -> HeldoutGram:
    """The inner products of a step's score vectors with held-out prompts' correct answers.

    Args:
        step: The step's Gram matrix, with which that of the same rows must agree.
        prompts: One group a held-out prompt: its correct answers, each once.
        shares: The share of each answer among the correct samples of its prompt.

    Returns:
        The products.

    Raises:
        VerificationError: The two Gram matrices of the step's rows disagree.
    """
    answers = heldout_sequences(prepared, prompts, shares)
    found = measure_step(_joined(prepared, answers), engine=engine, verify=verify, progress=progress)
    num = step.num_rollouts
    _require_agreement(prepared, step.score_gram, found.gram[:num, :num])
    of_prompt = np.equal.outer(answers.owners, np.arange(len(answers.groups))).astype(np.float64)
    squares = np.diag(of_prompt.T @ found.gram[num:, num:] @ of_prompt)
    return HeldoutGram(
        cross=found.gram[:num, num:] @ of_prompt,
        norms=np.sqrt(np.clip(squares, 0.0, None)),
        scales=_scales(prepared.plan, step.logprobs),
        num_answers=len(answers.sequences),
        notes=answers.notes,
    )


def _joined(prepared: PreparedStep, answers: HeldoutSequences) -> PreparedStep:
    """The score rows of a step with a row an answer behind them; nothing else of its loss."""
    plan, num = prepared.plan, len(prepared.plan.sequences)
    rows = [Row(sequence=index, channel="score") for index in range(num)]
    for index, (sequence, share) in enumerate(zip(answers.sequences, answers.shares, strict=True), start=num):
        rows.append(Row(sequence=index, channel="score", given=_sampled(sequence) * share))
    joined = replace(plan, sequences=(*plan.sequences, *answers.sequences), rows=tuple(rows), entropy_weights=None)
    return replace(prepared, plan=joined, groups=(*prepared.groups, *answers.groups))


def _sampled(sequence: TokenSequence) -> torch.Tensor:
    return torch.tensor(sequence.mask, dtype=torch.float64)


def _scales(plan: RowPlan, logprobs: Sequence[NDArray[np.float64]]) -> Array | None:
    """One over what the score vector of each rollout weighs all its sampled tokens by."""
    scales = np.zeros(len(plan.sequences))
    for index, (sequence, own) in enumerate(zip(plan.sequences, logprobs, strict=True)):
        slope = plan.cotangent(Row(sequence=index, channel="score"), torch.as_tensor(own)).numpy()
        weights = slope[np.array(sequence.mask, dtype=np.bool_)]
        largest = float(np.abs(weights).max(initial=0.0))
        if largest and np.ptp(weights) > _EVEN * largest:
            return None
        scales[index] = 1.0 / weights[0] if largest else 0.0
    return scales


def _require_agreement(prepared: PreparedStep, alone: Array, joined: Array) -> None:
    scale = np.sqrt(np.clip(np.diag(alone), 0.0, None))
    sizes = np.maximum(np.outer(scale, scale), float(np.mean(scale) ** 2))
    error = float(np.max(np.abs(joined - alone) / sizes)) if sizes.all() else 0.0
    limit = tolerance(prepared.policy.dtype, tf32=uses_tf32(prepared.policy.device))
    require_agreement("The step's score vectors have other inner products beside held-out answers", error, limit)
