"""Inner products of a step's score vectors with the gradients of held-out answers, by the same engines.

The answers join the step's rollouts as extra rows, each with weight 1 on every sampled token, times its share among
the correct samples of its prompt. So it costs the step's passes again, and one an answer. The step's own Gram
matrix, its loss and its self-check are measured without them; that of its rows among the others must agree with it.

Shapes: R rollouts of the step, H held-out answers, M prompts that they are of.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.gradients.engine_options import Engine, Verify
from gradscope.gradients.model.batches import Frame, TokenSequence
from gradscope.gradients.model.policy import token_sequences
from gradscope.gradients.plan.prepared_step import PreparedStep, scales_with_width
from gradscope.gradients.plan.rows import Row, RowPlan
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.step.verify import require_agreement, row_tolerance_of
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.groups import Rollout, RolloutGroup

# Correct answers of held-out prompts as token ids, for a step that they were not trained on.
#
# A file's texts are tokenized as the trainer's prompts are. Where the step's own prompts show that this gives
# other ids, such as those without a chat template, there is no number: it would be one of other prompts.
_WITH_TEXT = "Give the held-out prompts as they were given to the trainer: as messages, or with prompt_ids."


class _HeldoutSequences(Struct, frozen=True, kw_only=True):
    """The answers of the held-out prompts that are no prompts of the step."""

    groups: tuple[RolloutGroup, ...]  # the prompts with their answers, as groups of the step, [M]
    sequences: tuple[TokenSequence, ...]  # their answers, prompt by prompt
    owners: tuple[int, ...]  # whose answer each is, from 0 to M - 1
    shares: tuple[float, ...]  # its share among the correct samples of its prompt
    notes: tuple[str, ...]  # sentences on omitted prompts and on inexact texts


def _heldout_sequences(
    prepared: PreparedStep, prompts: Sequence[RolloutGroup], shares: Sequence[Sequence[float]]
) -> _HeldoutSequences:
    """The answers as token ids that fit the model, without those of prompts of the step."""
    _require_prompts_of_one_kind(prepared, prompts)
    trained = {sequence.prompt_ids for sequence in prepared.plan.sequences}
    groups: list[RolloutGroup] = []
    selected: list[tuple[TokenSequence, int, float]] = []
    num_trained, is_complete = 0, True
    for group, group_shares in zip(prompts, shares, strict=True):
        sequences = _sequences(prepared, group)
        if sequences[0].prompt_ids in trained:
            num_trained += 1
            continue
        pairs = enumerate(zip(group.rollouts, sequences, strict=True))
        usable = [index for index, (rollout, sequence) in pairs if _is_written(prepared, rollout, sequence)]
        is_complete &= len(usable) == len(sequences)
        total = sum(group_shares[index] for index in usable)
        selected += [(sequences[index], len(groups), group_shares[index] / total) for index in usable]
        if usable:
            rollouts = tuple(group.rollouts[index] for index in usable)
            groups.append(replace(group, step=prepared.step, rollouts=rollouts))
    if num_trained == len(prompts):
        raise InputError(
            "Every held-out prompt is trained on in this very step.",
            hint="Give samples of prompts that the step was not trained on.",
        )
    if not selected:
        raise InputError(
            "No held-out answer can be spelled in the tokens of this model.",
            hint="Give answers of the same model, or of one with its tokenizer.",
        )
    answers, owners, parts = zip(*selected, strict=True)
    return _HeldoutSequences(
        groups=tuple(groups),
        sequences=_framed(prepared, answers),
        owners=owners,
        shares=parts,
        notes=_notes(prepared, answers, num_trained, is_complete=is_complete),
    )


def _sequences(prepared: PreparedStep, group: RolloutGroup) -> tuple[TokenSequence, ...]:
    template = prepared.plan.objective.chat_template_kwargs
    return token_sequences(prepared.policy, [group], chat_template_kwargs=template)


def _is_written(prepared: PreparedStep, rollout: Rollout, sequence: TokenSequence) -> bool:
    """Whether the tokens of a text spell it: characters that a vocabulary lacks become another token, or none."""
    texts = [(rollout.completion, sequence.completion_ids)] if rollout.completion_ids is None else []
    if rollout.prompt_ids is None and rollout.messages is None:
        texts.append((rollout.prompt, sequence.prompt_ids))
    return all(_letters(text) in _letters(prepared.policy.tokenizer.decode(list(ids))) for text, ids in texts)


def _letters(text: str) -> str:
    """A text without the differences that tokenizers may make: spaces, case and compatible forms."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _framed(prepared: PreparedStep, sequences: Sequence[TokenSequence]) -> tuple[TokenSequence, ...]:
    """Sequences without padding, or in the trainer's where the step's rows have it, so that a batch can hold both."""
    frame = prepared.plan.sequences[0].frame
    if frame is None:
        return tuple(sequences)
    if scales_with_width(prepared.policy.model):
        raise InputError(
            "The model's positions change with the padded length of a batch, and held-out answers have no batch.",
            cause="model_unsupported",
        )
    widths = [(len(sequence.prompt_ids), len(sequence.completion_ids)) for sequence in sequences]
    frames = [Frame(prompt_width=p, completion_width=c, padding_id=frame.padding_id) for p, c in widths]
    return tuple(replace(sequence, frame=new_frame) for sequence, new_frame in zip(sequences, frames, strict=True))


def _require_prompts_of_one_kind(prepared: PreparedStep, prompts: Sequence[RolloutGroup]) -> None:
    """Refuse text that the step's own prompts show to have other ids."""
    first = prompts[0].rollouts[0]
    if first.prompt_ids is not None:
        return
    pairs = zip(prepared.rollouts, prepared.plan.sequences, strict=True)
    first_of_group = {rollout.group_id: (rollout, sequence) for rollout, sequence in reversed(list(pairs))}
    for rollout, sequence in first_of_group.values():  # the first of each group: prompts are the same within one
        as_text = replace(rollout, prompt_ids=None, messages=rollout.messages if first.messages else None)
        if not rollout.prompt and as_text.messages is None:
            continue  # a log of ids alone shows nothing
        if _retokenized(prepared, as_text).prompt_ids != sequence.prompt_ids:
            raise InputError(
                "The step's prompts have other token ids than their text gives, as with a chat template, so those of "
                "the held-out prompts are not known.",
                hint=_WITH_TEXT,
                cause="prompt_unknown",
            )


def _retokenized(prepared: PreparedStep, rollout: Rollout) -> TokenSequence:
    group = RolloutGroup(step=0, group_id=rollout.group_id, prompt_id=rollout.group_id, rollouts=(rollout,))
    return _sequences(prepared, group)[0]


def _notes(
    prepared: PreparedStep, sequences: Sequence[TokenSequence], num_trained: int, *, is_complete: bool
) -> tuple[str, ...]:
    notes = []
    if num_trained:
        notes.append("Held-out prompts that a step trains on are left out of that step.")
    if not is_complete:
        notes.append("Held-out answers that the model's vocabulary cannot spell are left out.")
    if any(sequence.inferred for sequence in sequences):
        notes.append("Held-out answers were tokenized from text.")
        # whether completions of the step whose ids were logged with their text have them again when tokenized
        pairs = zip(prepared.rollouts, prepared.plan.sequences, strict=True)
        logged = [(rollout, s) for rollout, s in pairs if not s.inferred and rollout.completion and all(s.mask)]
        unlogged = (replace(rollout, completion_ids=None, mask=None) for rollout, _ in logged)
        retokenized = [_retokenized(prepared, rollout).completion_ids for rollout in unlogged]
        end = getattr(prepared.policy.tokenizer, "eos_token_id", None)
        if not all(
            _without_end(end, new) == _without_end(end, sequence.completion_ids)
            for new, (_, sequence) in zip(retokenized, logged, strict=True)
        ):
            notes.append(
                "Some of the run's own completions have other ids than their text gives, so held-out answers may too."
            )
    return tuple(notes)


def _without_end(end: int | None, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Token ids without the one that ends them, which truncated completions lack."""
    return ids[:-1] if ids[-1:] == (end,) else ids


_EVEN = 1e-6
"""Weights of the tokens of an answer that differ by less, relative to the largest, are one weight and its rounding."""


class HeldoutGram(Struct, frozen=True, kw_only=True):
    """The rollouts of a step and the correct samples of held-out prompts.

    C_k is the mean gradient of the log-probability of those of prompt k.
    """

    cross: Array  # score vectors of the step's rollouts times C_k, [R, M]
    norms: Array  # |C_k|, [M]
    scales: Array | None
    """The factor from a rollout's score vector to its log-probability's gradient, 0 where the loss leaves it out, [R];
    None where the loss weighs the tokens of a rollout unequally."""
    notes: tuple[str, ...]  # what was left out, and what may be inexact, in sentences


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

    Raises:
        VerificationError: The two Gram matrices of the step's rows disagree.
    """
    answers = _heldout_sequences(prepared, prompts, shares)
    plan, num = prepared.plan, step.num_rollouts
    # the score rows of the step with a row an answer behind them; nothing else of its loss
    rows = [Row(sequence=index, channel="score") for index in range(num)]
    for index, (sequence, share) in enumerate(zip(answers.sequences, answers.shares, strict=True), start=num):
        weights = torch.tensor(sequence.mask, dtype=torch.float64) * share
        rows.append(Row(sequence=index, channel="score", weights=weights))
    with_answers = replace(
        prepared,
        plan=replace(plan, sequences=(*plan.sequences, *answers.sequences), rows=tuple(rows), entropy_weights=None),
        groups=(*prepared.groups, *answers.groups),
    )
    combined = measure_step(with_answers, engine=engine, verify=verify, progress=progress)
    scale = np.sqrt(np.clip(np.diag(step.score_gram), 0.0, None))
    sizes = np.maximum(np.outer(scale, scale), float(np.mean(scale) ** 2))
    error = float(np.max(np.abs(combined.gram[:num, :num] - step.score_gram) / sizes)) if sizes.all() else 0.0
    limit = row_tolerance_of(prepared.policy)
    require_agreement("The step's score vectors have other inner products beside held-out answers", error, limit)
    owner = np.equal.outer(answers.owners, np.arange(len(answers.groups))).astype(np.float64)
    squares = np.diag(owner.T @ combined.gram[num:, num:] @ owner)
    return HeldoutGram(
        cross=combined.gram[:num, num:] @ owner,
        norms=np.sqrt(np.clip(squares, 0.0, None)),
        scales=_scales(prepared.plan, step.logprobs),
        notes=answers.notes,
    )


def _scales(plan: RowPlan, logprobs: Sequence[NDArray[np.float64]]) -> Array | None:
    """One over the weight that each rollout's score vector gives all its sampled tokens."""
    scales = np.zeros(len(plan.sequences))
    for index, (sequence, values) in enumerate(zip(plan.sequences, logprobs, strict=True)):
        slope = plan.cotangent(Row(sequence=index, channel="score"), torch.as_tensor(values)).numpy()
        weights = slope[np.array(sequence.mask, dtype=np.bool_)]
        largest = float(np.abs(weights).max(initial=0.0))
        if largest and np.ptp(weights) > _EVEN * largest:
            return None
        scales[index] = 1.0 / weights[0] if largest else 0.0
    return scales
