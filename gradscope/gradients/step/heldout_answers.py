"""Correct answers of held-out prompts as token ids, beside a step that they were not trained on.

What a file holds as text is tokenized as the trainer's prompts are. Where the step's own prompts show that this gives
other ids, such as those without a chat template, there is no number: it would be one of other prompts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradscope.errors import InputError
from gradscope.gradients.model.token_sequence import Frame, TokenSequence
from gradscope.gradients.model.tokenize import token_sequences
from gradscope.gradients.plan.padded_sequences import scales_with_width
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.rollouts.types import Rollout, RolloutGroup

_WITH_TEXT = "Give the held-out prompts as they were given to the trainer: as messages, or with prompt_ids."


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutSequences:
    """The answers of the held-out prompts that are no prompts of the step."""

    groups: tuple[RolloutGroup, ...]
    """The prompts with their answers, as groups of the step, [M]."""
    sequences: tuple[TokenSequence, ...]
    """Their answers, prompt by prompt."""
    owners: tuple[int, ...]
    """Whose answer each is, from 0 to M - 1."""
    shares: tuple[float, ...]
    """Its share among the correct samples of its prompt."""
    notes: tuple[str, ...]
    """What was left out, and what may be inexact, in sentences."""


def heldout_sequences(
    prepared: PreparedStep, prompts: Sequence[RolloutGroup], shares: Sequence[Sequence[float]]
) -> HeldoutSequences:
    """The answers as token ids that fit the model, without those of prompts of the step.

    Args:
        prompts: One group a held-out prompt: its correct answers, each once.
        shares: The share of each answer among the correct samples of its prompt.

    Returns:
        The answers, and what was left out.
    """
    _require_prompts_of_one_kind(prepared, prompts)
    trained = {sequence.prompt_ids for sequence in prepared.plan.sequences}
    groups: list[RolloutGroup] = []
    kept: list[tuple[TokenSequence, int, float]] = []
    num_trained = num_unspelled = 0
    for group, own in zip(prompts, shares, strict=True):
        sequences = _sequences(prepared, group)
        if sequences[0].prompt_ids in trained:
            num_trained += 1
            continue
        pairs = enumerate(zip(group.rollouts, sequences, strict=True))
        known = [index for index, (rollout, of) in pairs if _is_written(prepared, rollout, of)]
        num_unspelled += len(sequences) - len(known)
        total = sum(own[index] for index in known)
        kept += [(sequences[index], len(groups), own[index] / total) for index in known]
        if known:
            rollouts = tuple(group.rollouts[index] for index in known)
            groups.append(replace(group, step=prepared.step, rollouts=rollouts))
    _require_some(len(prompts), num_trained, len(kept))
    every, owners, parts = zip(*kept, strict=True)
    return HeldoutSequences(
        groups=tuple(groups),
        sequences=_framed(prepared, every),
        owners=owners,
        shares=parts,
        notes=_notes(prepared, every, num_trained, num_unspelled),
    )


def _require_some(num_prompts: int, num_trained: int, num_answers: int) -> None:
    if num_trained == num_prompts:
        raise InputError(
            "Every held-out prompt is trained on in this very step.",
            hint="Give samples of prompts that the step was not trained on.",
        )
    if not num_answers:
        raise InputError(
            "No held-out answer can be spelled in the tokens of this model.",
            hint="Give answers of the same model, or of one with its tokenizer.",
        )


def _sequences(prepared: PreparedStep, group: RolloutGroup) -> tuple[TokenSequence, ...]:
    template = prepared.plan.objective.chat_template_kwargs
    return token_sequences(prepared.policy, [group], chat_template_kwargs=template)


def _is_written(prepared: PreparedStep, rollout: Rollout, sequence: TokenSequence) -> bool:
    """Whether the tokens of a text spell it: what a vocabulary lacks becomes another token, or none."""
    plain = [(rollout.completion, sequence.completion_ids)] if rollout.completion_ids is None else []
    if rollout.prompt_ids is None and rollout.messages is None:
        plain.append((rollout.prompt, sequence.prompt_ids))
    return all(_letters(text) in _letters(prepared.policy.tokenizer.decode(list(ids))) for text, ids in plain)


def _letters(text: str) -> str:
    """A text without what tokenizers change in good faith: spaces, case and compatible forms."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _framed(prepared: PreparedStep, sequences: Sequence[TokenSequence]) -> tuple[TokenSequence, ...]:
    """Without padding; where the step's rows stand in the trainer's, so that a batch can hold both."""
    frame = prepared.plan.sequences[0].frame
    if frame is None:
        return tuple(sequences)
    if scales_with_width(prepared.policy.model):
        raise InputError(
            "The model's positions change with the padded length of a batch, and held-out answers have no batch.",
            cause="model_unsupported",
        )
    widths = [(len(one.prompt_ids), len(one.completion_ids)) for one in sequences]
    frames = [Frame(prompt_width=first, completion_width=then, padding_id=frame.padding_id) for first, then in widths]
    return tuple(replace(one, frame=own) for one, own in zip(sequences, frames, strict=True))


def _require_prompts_of_one_kind(prepared: PreparedStep, prompts: Sequence[RolloutGroup]) -> None:
    """Refuse text that the step's own prompts show to have other ids."""
    first = prompts[0].rollouts[0]
    if first.prompt_ids is not None:
        return
    for rollout, sequence in _firsts(prepared):
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


def _firsts(prepared: PreparedStep) -> list[tuple[Rollout, TokenSequence]]:
    """The first rollout of each group: prompts are the same within one."""
    pairs = zip(prepared.rollouts, prepared.plan.sequences, strict=True)
    return list({rollout.group_id: (rollout, sequence) for rollout, sequence in reversed(list(pairs))}.values())


def _retokenized(prepared: PreparedStep, rollout: Rollout) -> TokenSequence:
    alone = RolloutGroup(step=0, group_id=rollout.group_id, prompt_id=rollout.group_id, rollouts=(rollout,))
    return _sequences(prepared, alone)[0]


def _notes(
    prepared: PreparedStep, sequences: Sequence[TokenSequence], num_trained: int, num_unspelled: int
) -> tuple[str, ...]:
    notes = []
    if num_trained:
        notes.append("Held-out prompts that a step trains on are left out of that step.")
    if num_unspelled:
        notes.append("Held-out answers that the model's vocabulary cannot spell are left out.")
    if any(sequence.inferred for sequence in sequences):
        notes.append("Held-out answers were tokenized from text.")
        if not _keeps_logged_ids(prepared):
            notes.append(
                "Some of the run's own completions have other ids than their text gives, so held-out answers may too."
            )
    return tuple(notes)


def _keeps_logged_ids(prepared: PreparedStep) -> bool:
    """Whether completions of the step whose ids were logged beside their text have them again when tokenized."""
    pairs = zip(prepared.rollouts, prepared.plan.sequences, strict=True)
    logged = [(rollout, of) for rollout, of in pairs if not of.inferred and rollout.completion and all(of.mask)]
    again = [_retokenized(prepared, replace(rollout, completion_ids=None, mask=None)) for rollout, _ in logged]
    end = getattr(prepared.policy.tokenizer, "eos_token_id", None)
    return all(
        _without(end, one.completion_ids) == _without(end, of.completion_ids)
        for one, (_, of) in zip(again, logged, strict=True)
    )


def _without(end: int | None, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Token ids without the one that ends them, which truncated completions lack."""
    return ids[:-1] if ids[-1:] == (end,) else ids
