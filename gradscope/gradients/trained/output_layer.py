"""TRL's output layer, where it is not a model's own.

From 1.13 on TRL asks a model for its last hidden state only, multiplies it by the output embedding, scales and caps it
by a few numbers of the configuration, and takes log-probabilities from that. What a model does beyond, as BERT's family
does in its prediction head, was no part of such a training.

Shapes: S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from gradscope.gradients.model.token_sequence import TokenSequence

_SAME = 1e-3
"""Relative difference of logits that is rounding."""


def is_own_output(model: Any, sequence: TokenSequence) -> bool:
    """Whether a model's logits of one sequence are those that TRL's layer would make of its last hidden state."""
    device = next(model.parameters()).device
    ids = torch.tensor([(*sequence.prompt_ids, *sequence.completion_ids)], device=device)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad():
        own = model(**given).logits
        with trl_output(model):
            made = model(**given).logits
    return made.shape == own.shape and bool((made - own).abs().max() <= _SAME * own.abs().max())


@contextmanager
def trl_output(model: Any) -> Iterator[None]:
    """Let a model answer with the logits of TRL's layer.

    Yields:
        Nothing.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config()

    def forward(*, logits_to_keep: int = 0, **arguments: Any) -> SimpleNamespace:
        hidden = base.base_model(**arguments).last_hidden_state[:, -logits_to_keep:]
        return SimpleNamespace(logits=_scaled(config, base.get_output_embeddings()(hidden)))

    vars(base)["forward"] = forward
    try:
        yield
    finally:
        del vars(base)["forward"]


def _scaled(config: Any, logits: torch.Tensor) -> torch.Tensor:
    """What TRL makes of the product, [1, S, V], by the configuration's numbers of these names."""
    known = (getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
    scale, divisor = next((number for number in known if number is not None), None), "logits_scaling"
    if scale is None and getattr(config, divisor, None) is not None:
        scale = getattr(config, divisor) if config.model_type == "hyperclovax" else 1 / getattr(config, divisor)
    logits = logits if scale is None else logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)
