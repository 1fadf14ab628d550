"""Which models have an output layer that can be taken in slices, asked of the model itself.

No names of configurations are looked at. The model runs on a few tokens with numbers of our choice in place of the
layer's output, over the whole range and for every id: what it makes of them is a scale and a soft cap, or the logits
are formed whole as the model forms them. Log-probabilities, entropies and gradients of the same tokens are then held
against the model's own. Where several processes share the model, all of them ask it, and go by one answer.

Shapes: B rows, S tokens, H width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn

from gradscope.gradients.model.calls import call_on, without_adapter
from gradscope.gradients.model.head.sliced import HeadTokens, PlainHead, sliced_outputs
from gradscope.gradients.processes.group import from_all, holds_everywhere
from gradscope.gradients.processes.sharding import is_in_parts, is_of_sharding, original_type, start_of_pass

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

    A layer that somebody watches by a hook, exchanged or put an adapter around is not plain, and under autocast its
    products are the trainer's. One that FSDP shards is whole whenever it is called. The first call for a model runs it
    twice on three tokens.

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
def told_input(head: PlainHead, tell: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Tell what the layer is given, and let it hand on a single column, for the model to go on with.

    Args:
        tell: Called within the layer's call, where a weight that several processes share is together, with what the
            layer was given, [B, S, H].

    Yields:
        Nothing.
    """

    def note(hidden: torch.Tensor) -> torch.Tensor:
        tell(hidden)
        return start_of_pass(hidden.detach()[..., :1].clone())

    with _exchanged(head.module, note):
        yield


def _output_layer(model: Any) -> nn.Linear | None:
    """The layer, if it is a linear one as PyTorch has it, on its own, and whole where it is called."""
    find = getattr(model, "get_output_embeddings", None)
    module = None if find is None else find()
    if not isinstance(module, nn.Linear) or original_type(module) is not nn.Linear or "forward" in vars(module):
        return None
    kind = module.weight.device.type
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    is_watched = any(not is_of_sharding(hook) for each in hooks for hook in each.values())
    is_whole = type(module.weight) in (nn.Parameter, torch.Tensor) or is_in_parts(module.weight)
    return module if is_whole and kind != "meta" and not is_watched and not torch.is_autocast_enabled(kind) else None


@contextmanager
def _exchanged(module: nn.Linear, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        del vars(module)["forward"]


def _tail(model: Any, module: nn.Linear) -> Tail | None:
    """Scale and cap, if there is nothing else; every process makes the same passes and gets the same answer."""
    ids = torch.arange(1, _NUM_TOKENS + 1, device=model.get_input_embeddings().weight.device)
    ids = (ids % module.weight.shape[0]).unsqueeze(0)
    tail, *others = from_all(_scale_and_cap(model, module, ids))
    if tail is None or any(other != tail for other in others):
        return None
    head = PlainHead(module=module, scale=tail[0], cap=tail[1])
    return tail if holds_everywhere(_agrees(model, head, ids)) else None


def _scale_and_cap(model: Any, module: nn.Linear, ids: torch.Tensor) -> Tail | None:
    """What the model makes of outputs of our choice, if that is a scale and a cap."""
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
    return (scale, cap) if bool(((made - expected).abs() <= _SAME * expected.abs()).all()) else None


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
    sliced: list[_Found] = []
    eps = torch.finfo(head.module.weight.dtype).eps

    def keep(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.detach().requires_grad_(True)
        sliced.append(_in_slices(head, hidden[0], ids[0].to(hidden.device)))
        bias = head.module.bias
        output = nn.functional.linear(hidden, head.module.weight.detach(), None if bias is None else bias.detach())
        given.extend((output, hidden))
        return output.clone()

    with torch.enable_grad(), _exchanged(head.module, keep):
        logits = call_on(model, ids).logits[0]
    (found,), tokens = sliced, ids[0].to(logits.device)
    wide = torch.promote_types(logits.dtype, torch.float32)
    with torch.enable_grad():
        logs = torch.log_softmax(logits.to(wide), dim=-1)
        own = logs.gather(1, tokens.unsqueeze(1)).squeeze(1), -(logs.exp() * logs).sum(1)
        own_grads = torch.autograd.grad(_weighed(own), given)
    units = 64 * torch.finfo(wide).eps if given[0].dtype == wide else 8 * eps  # half precision rounds each logit
    limit = units * max(1.0, float(logits.detach().abs().max()))
    return all(bool((one - other).abs().max() <= limit) for one, other in zip(found.values, own, strict=True)) and all(
        bool((one - other[0]).abs().max() <= eps**0.5 * other.abs().max())
        for one, other in zip(found.grads, own_grads, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What slices give for a few tokens."""

    values: tuple[torch.Tensor, torch.Tensor]
    """Log-probabilities and entropies, [N] each."""
    grads: tuple[torch.Tensor, torch.Tensor]
    """The gradients of their weighed sum by the layer's output, [N, V], and by what it was given, [N, H]."""


def _in_slices(head: PlainHead, hidden: torch.Tensor, ids: torch.Tensor) -> _Found:
    told: list[HeadTokens] = []
    hidden = hidden.detach().requires_grad_(True)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logprobs, entropies = sliced_outputs(
        head, hidden, ids, wide, entropies=True, watch=lambda _, tokens: told.append(tokens)
    )
    (to_hidden,) = torch.autograd.grad(_weighed((logprobs, entropies)), hidden)
    values = logprobs.detach(), entropies.detach()
    return _Found(values=values, grads=(told[0].cotangents(head, 0, head.vocab_size), to_hidden))


def _weighed(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Unequal weights, so that tokens cannot be taken for each other."""
    logprobs, entropies = outputs
    weights = torch.arange(1, len(logprobs) + 1, device=logprobs.device).to(logprobs)
    return (weights * (logprobs - entropies.flip(0) / 2)).sum()
