"""Rollouts as token ids: exact where they were logged, else re-tokenized the way TRL tokenizes, and then said so.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradscope.errors import InputError
from gradscope.gradients.model.embedding import built_for, longest_sequence
from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.rollouts.types import Rollout, RolloutGroup

if TYPE_CHECKING:
    from gradscope.gradients.model.policy import MeasuredPolicy


def token_sequences(
    policy: MeasuredPolicy,
    groups: Sequence[RolloutGroup],
    *,
    max_completion_length: int | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[TokenSequence, ...]:
    """The rollouts of some groups as token ids that fit the model.

    Text is tokenized as TRL does: a plain prompt with the tokenizer's special tokens, a conversation through the chat
    template with a generation prompt, a completion without special tokens and with the end-of-sequence token where it
    is shorter than ``max_completion_length``.

    Args:
        policy: The model whose vocabulary and positions the ids must fit, and its tokenizer.
        max_completion_length: The trainer's limit; where it is not known, every re-tokenized completion counts as
            ended.

    Returns:
        One sequence per rollout, in order.
    """
    sequences = []
    for group in groups:
        for rollout in group.rollouts:
            sequence = _sequence(policy.tokenizer, rollout, max_completion_length, chat_template_kwargs or {})
            _require_known(policy, sequence, group.step)
            sequences.append(sequence)
    _require_positions(policy, sequences)
    return tuple(sequences)


def _sequence(
    tokenizer: Any, rollout: Rollout, max_completion_length: int | None, template: Mapping[str, Any]
) -> TokenSequence:
    if (rollout.prompt_ids is None or rollout.completion_ids is None) and tokenizer is None:
        raise InputError(
            f"Rollout {rollout.sample} of group {rollout.group_id} has no token ids, and no tokenizer was found.",
            hint="Put tokenizer.json beside the weights, or log exact ids.",
        )
    prompt_ids = rollout.prompt_ids if rollout.prompt_ids is not None else _prompt_ids(tokenizer, rollout, template)
    if rollout.completion_ids is not None:
        completion_ids = rollout.completion_ids
    else:
        completion_ids = _completion_ids(tokenizer, rollout.completion, max_completion_length)
    mask = rollout.mask if rollout.mask is not None else (True,) * len(completion_ids)
    where = f"Rollout {rollout.sample} of group {rollout.group_id}"
    if len(mask) != len(completion_ids):
        raise InputError(
            f"{where} has a loss mask of {len(mask)} tokens and a completion of {len(completion_ids)}.",
            hint="Log exact completion ids; a mask cannot be matched to re-tokenized text.",
        )
    if not prompt_ids:
        raise InputError(
            f"{where} has an empty prompt: nothing predicts its first token.",
            hint="Log the prompt as the policy saw it, with its start-of-sequence token.",
        )
    return TokenSequence(
        group_id=rollout.group_id,
        sample=rollout.sample,
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(completion_ids),
        mask=tuple(mask),
        inferred=rollout.completion_ids is None,
    )


def _prompt_ids(tokenizer: Any, rollout: Rollout, template: Mapping[str, Any]) -> tuple[int, ...]:
    if rollout.messages is None:
        return tuple(tokenizer(rollout.prompt)["input_ids"])
    # Columnar files give every message every key; a template must not see the ones that are null.
    messages = [{key: value for key, value in message.items() if value is not None} for message in rollout.messages]
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, **template
    )
    return tuple(encoded["input_ids"])


def _completion_ids(tokenizer: Any, completion: str, max_completion_length: int | None) -> tuple[int, ...]:
    ids = tuple(tokenizer(completion, add_special_tokens=False)["input_ids"])
    if tokenizer.eos_token_id is None:
        return ids
    if max_completion_length is not None and len(ids) >= max_completion_length:
        return ids[:max_completion_length]
    return (*ids, tokenizer.eos_token_id)


def _require_known(policy: MeasuredPolicy, sequence: TokenSequence, step: int) -> None:
    ids = (*sequence.prompt_ids, *sequence.completion_ids)
    if min(ids) < 0 or max(ids) >= policy.vocab_size:
        outside = max(ids) if max(ids) >= policy.vocab_size else min(ids)
        raise InputError(
            f"Step {step}, group {sequence.group_id}, sample {sequence.sample}: token id {outside} is outside the "
            f"model's vocabulary of {policy.vocab_size}.",
            hint="These rollouts are from another model or tokenizer; point --model at theirs.",
        )


def _require_positions(policy: MeasuredPolicy, sequences: Sequence[TokenSequence]) -> None:
    """Refuse what a table of positions cannot hold; a model without one runs longer sequences than it was built for."""
    longest = max(sequences, key=lambda sequence: sequence.num_tokens, default=None)
    expected = built_for(policy.model)
    if longest is None or (expected is not None and longest.num_tokens <= expected):
        return
    limit = longest_sequence(policy.model)
    if limit is not None and longest.num_tokens > limit:
        raise InputError(
            f"Group {longest.group_id}, sample {longest.sample} has {longest.num_tokens} tokens; the model's table of "
            f"positions ends at {limit}.",
            hint="These rollouts are from a model with a longer context; point --model at theirs.",
        )
