"""Whether a model's output depends on the padding around its rows, and if so the sequences in the trainer's padding.

TRL gives the model a mask and no positions. Models that rotate queries and keys, or count positions by the mask, do not
see the padding; models with learned positions count what is before the first token, and rotary ones whose frequencies
change with the padded length see its end. Which of both a model is, is asked of the model.

Shapes: R rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.gradients.plan.rows import RowPlan

_SAME = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 2e-2}
"""Largest difference of a log-probability, relative to the largest of them or 1, that is rounding. Rotary models of
2 to 24 layers differ by 0.5e-6 to 1.5e-6 in float32 and 0.02 in bfloat16; frequencies scaled for 8 % more positions by
5e-5, learned positions by 0.1 and more."""


def as_trained(policy: MeasuredPolicy, sequences: Sequence[TokenSequence]) -> tuple[TokenSequence, ...]:
    """The sequences of a step, [R], in the trainer's padding where the model's output depends on it.

    Returns:
        The sequences, framed or as they are.
    """
    if policy.padding is None:
        return tuple(sequences)
    framed = policy.padding.framed(sequences, padding_id_of(policy))
    if scales_with_width(policy.model):
        return framed
    furthest = max(framed, key=lambda sequence: sequence.start)
    return framed if sees_padding(policy, furthest) else tuple(sequences)


def in_frames(policy: MeasuredPolicy, plan: RowPlan) -> tuple[TokenSequence, ...]:
    """The sequences of a plan, [R], in the trainer's padding whether or not it matters: rounding depends on it."""
    if policy.padding is None or any(sequence.frame for sequence in plan.sequences):
        return plan.sequences
    return policy.padding.framed(plan.sequences, padding_id_of(policy))


def scales_with_width(model: Any) -> bool:
    """Whether rotary frequencies change with the padded length of a batch, at once or beyond what was pretrained.

    The change may be as small as rounding where a batch is hardly longer, so it is not left to a comparison.

    Returns:
        True for dynamic scaling and longrope.
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


def sees_padding(policy: MeasuredPolicy, framed: TokenSequence) -> bool:
    """Whether a model's log-probabilities of one sequence depend on the padding around it, beyond rounding."""
    if framed.length == framed.num_tokens:
        return False
    alone, padded = (_logprobs(policy, sequence) for sequence in (replace(framed, frame=None), framed))
    scale = max(1.0, float(alone.abs().max()))
    return not bool((alone - padded).abs().max() <= _SAME[policy.dtype] * scale)


def padding_id_of(policy: MeasuredPolicy) -> int:
    """The token that the trainer pads with: the tokenizer's, else its end-of-sequence token, as TRL has it."""
    config = policy.model.config.get_text_config()
    candidates = [getattr(policy.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id")]
    known = [token for token in (*candidates, getattr(config, "pad_token_id", None)) if isinstance(token, int)]
    return next((token for token in known if 0 <= token < policy.vocab_size), 0)


def _logprobs(policy: MeasuredPolicy, sequence: TokenSequence) -> torch.Tensor:
    with torch.no_grad():
        (logprobs,) = completion_logprobs(policy.model, pad_batch([0], [sequence], policy.device), 1.0)
    return logprobs
