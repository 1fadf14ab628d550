"""Which models have an output layer that can be taken in slices, asked of the model itself.

No names of configurations are looked at. The model runs on a few tokens with numbers of our choice in place of the
layer's output, over the whole range and for every id: what it makes of them is a scale and a soft cap, or the logits
are formed whole as the model forms them. Log-probabilities, entropies and gradients of the same tokens are then held
against the model's own.

Shapes: B rows, S tokens, H width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn

from gradscope.gradients.model.calls import call_on, without_adapter
from gradscope.gradients.model.head.sliced import HeadTokens, PlainHead, sliced_outputs
from gradscope.gradients.processes.group import num_connected

_NUM_TOKENS = 3
"""Tokens that the model is asked about."""
_TINY, _HUGE, _RANGE = 2.0**-20, 2.0**40, 300.0
"""Outputs that a soft cap does not touch, that it maps to the cap, and between which it is looked at."""
_SAME = 1e-6
"""Relative difference of a scaled and capped number that is rounding to float32."""

Tail = tuple[float, float | None]
"""Scale and cap."""
_known: WeakKeyDictionary[nn.Module, tuple[ReferenceType[Any], Tail | None]] = WeakKeyDictionary()
"""Output layer -> the forward pass that was asked, and its answer."""


def plain_head(model: Any) -> PlainHead | None:
    """The output layer where it can be taken in slices.

    A layer that somebody watches by a hook, exchanged, sharded or put an adapter around is not plain, and under
    autocast its products are the trainer's. The first call for a model runs it twice on three tokens.

    Returns:
        The layer; None where logits must be formed whole, by the model itself.
    """
    module = _output_layer(model)
    if module is None:
        return None
    base = without_adapter(model)
    forward = vars(base).get("forward", type(base))
    asked, tail = _known.get(module, (None, None))
    if asked is None or asked() is not forward:
        tail = _tail(model, module)
        _known[module] = (ref(forward), tail)
    return None if tail is None else PlainHead(module=module, scale=tail[0], cap=tail[1])


@contextmanager
def input_of(head: PlainHead) -> Iterator[list[torch.Tensor]]:
    """Let the layer hand on a single column, for the model to go on with.

    Yields:
        What the layer was given, [B, S, H], once it was called.
    """
    given: list[torch.Tensor] = []

    def note(hidden: torch.Tensor) -> torch.Tensor:
        given.append(hidden)
        return hidden.detach()[..., :1].clone()

    with _exchanged(head.module, note):
        yield given


def _output_layer(model: Any) -> nn.Linear | None:
    """The layer, if it is a linear one as PyTorch has it, on its own, and whole."""
    if num_connected() > 1:
        return None
    find = getattr(model, "get_output_embeddings", None)
    module = None if find is None else find()
    if type(module) is not nn.Linear or "forward" in vars(module):
        return None
    kind = module.weight.device.type
    is_watched = any(
        (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    )
    is_whole = type(module.weight) in (nn.Parameter, torch.Tensor) and kind != "meta"
    return module if is_whole and not is_watched and not torch.is_autocast_enabled(kind) else None


@contextmanager
def _exchanged(module: nn.Linear, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        del vars(module)["forward"]


def _tail(model: Any, module: nn.Linear) -> Tail | None:
    """Scale and cap, if there is nothing else."""
    ids = torch.arange(1, _NUM_TOKENS + 1, device=model.get_input_embeddings().weight.device)
    ids = (ids % module.weight.shape[0]).unsqueeze(0)
    outputs = _chosen_outputs(module)

    def choose(hidden: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(hidden.shape))
        return outputs.clone()

    shapes: list[tuple[int, ...]] = []
    with torch.no_grad(), _exchanged(module, choose):
        made = call_on(model, ids).logits
    if shapes != [(1, _NUM_TOKENS, module.weight.shape[1])] or made.shape != outputs.shape:
        return None
    scale, most = float(made[0, 0, 0]) / _TINY, float(made[0, 1, 0])
    cap = None if abs(most) > abs(scale) * _HUGE / 2 else most
    if not scale or cap == 0.0:
        return None
    expected = outputs * scale if cap is None else cap * torch.tanh(outputs * (scale / cap))
    is_all = bool(((made - expected).abs() <= _SAME * expected.abs()).all())
    return (scale, cap) if is_all and _agrees(model, PlainHead(module=module, scale=scale, cap=cap), ids) else None


def _chosen_outputs(module: nn.Linear) -> torch.Tensor:
    """Three tokens' outputs, [1, 3, V]: tiny ones, huge ones, and a range, each id another number."""
    size, device = module.weight.shape[0], module.weight.device
    outputs = torch.empty(1, _NUM_TOKENS, size, dtype=torch.float64, device=device)
    outputs[0, 0], outputs[0, 1] = _TINY, _HUGE
    outputs[0, 2] = torch.linspace(-_RANGE, _RANGE, size, dtype=torch.float64, device=device)
    return outputs


def _agrees(model: Any, head: PlainHead, ids: torch.Tensor) -> bool:
    """Whether a few tokens have the log-probabilities, entropies and gradients that the model's own logits give."""
    given: list[torch.Tensor] = []
    seen: list[HeadTokens] = []
    weight, bias = head.module.weight.detach(), head.module.bias

    def keep(hidden: torch.Tensor) -> torch.Tensor:
        output = nn.functional.linear(hidden.detach(), weight, None if bias is None else bias.detach())
        given.extend((hidden.detach()[0], output.requires_grad_(True)))
        return output.clone()

    with torch.enable_grad(), _exchanged(head.module, keep):
        logits = call_on(model, ids).logits[0]
    (hidden, output), tokens = given, ids[0].to(logits.device)
    wide = torch.promote_types(logits.dtype, torch.float32)
    with torch.enable_grad():
        logs = torch.log_softmax(logits.to(wide), dim=-1)
        own = logs.gather(1, tokens.unsqueeze(1)).squeeze(1), -(logs.exp() * logs).sum(1)
        hidden.requires_grad_(True)
        found = sliced_outputs(head, hidden, tokens, wide, entropies=True, watch=lambda _, told: seen.append(told))
        (own_grad,) = torch.autograd.grad(_weighed(own), output)
        (to_hidden,) = torch.autograd.grad(_weighed(found), hidden)
    eps = torch.finfo(weight.dtype).eps
    units = 64 * torch.finfo(wide).eps if weight.dtype == wide else 8 * eps  # half precision rounds each logit
    limit = units * max(1.0, float(logits.detach().abs().max()))
    grads = [
        (seen[0].cotangents(head, 0, head.vocab_size), own_grad[0]),
        (to_hidden, own_grad[0].to(weight.dtype) @ weight),
    ]
    return all(bool((one - other).abs().max() <= limit) for one, other in zip(own, found, strict=True)) and all(
        bool((one - other).abs().max() <= eps**0.5 * other.abs().max()) for one, other in grads
    )


def _weighed(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Unequal weights, so that tokens cannot be taken for each other."""
    logprobs, entropies = outputs
    weights = torch.arange(1, len(logprobs) + 1, device=logprobs.device).to(logprobs)
    return (weights * (logprobs - entropies.flip(0) / 2)).sum()
