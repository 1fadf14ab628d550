"""Whether TRL's output layer is a model's own.

From 1.13 on TRL asks a model for its last hidden state only, multiplies it by the output embedding, scales and caps it
by a few numbers of the configuration, and takes log-probabilities from that. What a model does beyond, as BERT's family
does in its prediction head, was no part of such a training.

Shapes: S tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from gradscope.gradients.model.token_sequence import TokenSequence

_SAME = 1e-3
"""Relative difference of logits that is rounding."""


def is_own_output(model: Any, sequence: TokenSequence) -> bool:
    """Whether a model's logits of one sequence are those that TRL's layer would make of its last hidden state."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = base.get_output_embeddings()
    device = next(base.parameters()).device
    ids = torch.tensor([(*sequence.prompt_ids, *sequence.completion_ids)], device=device)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad():
        own = model(**given).logits
        hidden = getattr(base.base_model(**given), "last_hidden_state", None)
        if head is None or hidden is None:
            return False
        made = _scaled(base.config.get_text_config(), torch.nn.functional.linear(hidden, head.weight, head.bias))
    return made.shape == own.shape and bool((made - own).abs().max() <= _SAME * own.abs().max())


def _scaled(config: Any, logits: torch.Tensor) -> torch.Tensor:
    """What TRL makes of the product, [1, S, V], by the configuration's numbers of these names."""
    known = (getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
    scale, divisor = next((number for number in known if number is not None), None), "logits_scaling"
    if scale is None and getattr(config, divisor, None) is not None:
        scale = getattr(config, divisor) if config.model_type == "hyperclovax" else 1 / getattr(config, divisor)
    logits = logits if scale is None else logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)
