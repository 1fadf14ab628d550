"""Mixtures of experts as transformers 5 writes them: all experts' matrices in one parameter, and a router.

Qwen3-MoE, Mixtral and their like hold ``gate_up_proj`` [E, 2I, H] and ``down_proj`` [E, H, I] and compute, for token t
and each chosen expert e with weight p, p W_down,e (act(g) * u) with (g, u) = W_gate_up,e x_t. Inside, tokens lose their
row; but what goes in and comes out still has it, so the inside is computed again, row by row.

Shapes: B rows, S padded length, T tokens of a row, E experts, K experts of a token, H width, I inner width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from gradscope.gradients.layers.factors import GradientFactor, Routed, Summed
from gradscope.gradients.layers.layer_call import ForwardCall, LayerCall, Verdict, is_close


def is_expert_layer(module: nn.Module) -> bool:
    """Whether a module holds experts as the rule knows them: [E, 2I, H] and [E, H, I] without biases."""
    own = dict(module.named_parameters(recurse=False))
    if own.keys() != {"gate_up_proj", "down_proj"} or not callable(getattr(module, "act_fn", None)):
        return False
    up, down = own["gate_up_proj"].shape, own["down_proj"].shape
    return len(up) == len(down) == 3 and up[0] == down[0] and up[1] == 2 * down[2] and up[2] == down[1]


def is_router(module: nn.Module) -> bool:
    """Whether a module is a top-k router whose only parameter is its weight [E, H]."""
    own = dict(module.named_parameters(recurse=False))
    return type(module).__name__.endswith("TopKRouter") and own.keys() == {"weight"} and own["weight"].dim() == 2


def returned_by(module: nn.Module, output: Any) -> Any:
    """What carries a module's gradient: a router's weights of the chosen experts, elsewhere its output."""
    return output[1] if is_router(module) and isinstance(output, tuple) and len(output) == 3 else output


def experts(call: LayerCall) -> Mapping[str, GradientFactor]:
    """All experts' matrices: dW_down,e = sum p d h^T and dW_gate_up,e = sum dz x^T over the tokens of expert e.

    Args:
        call: One call, input [B S, H], beside it the experts [B S, K] and their weights [B S, K], output gradient
            [B S, H].

    Returns:
        Factors of ``gate_up_proj`` [E, 2I, H] and ``down_proj`` [E, H, I].
    """
    index, weights = call.extra
    pairs = [
        _pairs(call.module, inputs, chosen, share, grad)
        for inputs, chosen, share, grad in zip(
            _rows(call, call.input), _rows(call, index), _rows(call, weights), _rows(call, call.grad), strict=True
        )
    ]
    expert_ids = tuple(pair[0] for pair in pairs)
    return {
        "gate_up_proj": Routed(experts=expert_ids, left=tuple(p[1] for p in pairs), right=tuple(p[2] for p in pairs)),
        "down_proj": Routed(experts=expert_ids, left=tuple(p[3] for p in pairs), right=tuple(p[4] for p in pairs)),
    }


def router(call: LayerCall) -> Mapping[str, GradientFactor]:
    """A router's matrix, by a backward pass of the router alone for each row.

    Args:
        call: One call, input [B S, H] and the gradient of the chosen experts' weights [B S, K].

    Returns:
        GradientFactor to ``weight`` [E, H].
    """
    rows = []
    for inputs, grad in zip(_rows(call, call.input), _rows(call, call.grad), strict=True):
        with torch.enable_grad():
            weight = call.module.get_parameter("weight").detach().requires_grad_(True)
            shares = returned_by(call.module, functional_call(call.module, {"weight": weight}, (inputs,)))
            (gradient,) = torch.autograd.grad(shares, weight, grad)
        rows.append(gradient.to(torch.promote_types(gradient.dtype, torch.float32)))
    return {"weight": Summed(rows=torch.stack(rows))}


def fits_experts(call: ForwardCall) -> Verdict:
    """Whether the first tokens' outputs can be computed again, and the batch's tokens and their experts are rows."""
    num_tokens = call.num_rows * call.length
    if len(call.extra) != 2 or not _is_of_tokens(call, num_tokens) or call.output.shape != call.input.shape:
        return False
    index, weights = call.extra
    if index.shape != weights.shape or len(index) != num_tokens:
        return False
    few = slice(0, 8)
    none = torch.zeros_like(call.output[few])
    expert_ids, _, _, _, inner = _pairs(call.module, call.input[few], index[few], weights[few], none)
    down = call.module.get_parameter("down_proj").detach()
    outer = weights[few].reshape(-1, 1) * torch.einsum("phi,pi->ph", down[expert_ids], inner)
    return is_close(outer.view(-1, index.shape[1], outer.shape[1]).sum(1), call.output[few].detach())


def fits_router(call: ForwardCall) -> Verdict:
    """Whether a router treats tokens one by one: the first of the batch's tokens come out the same alone."""
    num_tokens = call.num_rows * call.length
    if call.extra or not _is_of_tokens(call, num_tokens) or len(call.output) != num_tokens:
        return False
    alone = returned_by(call.module, call.module(call.input[:8]))
    return isinstance(alone, torch.Tensor) and is_close(alone, call.output[:8].detach())


def _is_of_tokens(call: ForwardCall, num_tokens: int) -> bool:
    return call.input.dim() == 2 and len(call.input) == num_tokens


def _rows(call: LayerCall, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A folded tensor [B S, ...] as each row's tokens, [B][T, ...]."""
    return call.tokens(tensor.reshape(len(call.spans), call.length, *tensor.shape[1:]))


def _pairs(
    module: nn.Module, inputs: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per (token, expert): the expert, dz, x, p d, and the inner activation."""
    up, down = module.get_parameter("gate_up_proj").detach(), module.get_parameter("down_proj").detach()
    expert_ids, num_choices = index.flatten(), index.shape[1]
    tokens = inputs.repeat_interleave(num_choices, 0)
    outer = (weights.reshape(-1, 1) * grad.repeat_interleave(num_choices, 0)).to(down.dtype)
    before = tokens.new_zeros(len(expert_ids), up.shape[1])
    inner_grad = tokens.new_zeros(len(expert_ids), down.shape[2])
    for expert in torch.unique(expert_ids).tolist():
        chosen = expert_ids == expert
        before[chosen] = tokens[chosen] @ up[expert].t()
        inner_grad[chosen] = outer[chosen] @ down[expert]
    with torch.enable_grad():
        before.requires_grad_(True)
        inner = _gated(module, before)
        (before_grad,) = torch.autograd.grad(inner, before, inner_grad)
    return expert_ids, before_grad, tokens, outer, inner.detach()


def _gated(module: nn.Module, before: torch.Tensor) -> torch.Tensor:
    """What goes into the second matrix: transformers' own function where the experts have one, else act(g) * u."""
    own = getattr(module, "_apply_gate", None)
    if callable(own):
        gated: torch.Tensor = own(before)
        return gated
    gate, linear = before.chunk(2, dim=-1)
    product: torch.Tensor = module.act_fn(gate) * linear  # type: ignore[operator]
    return product
