"""The layer rules: from a layer's input and output gradient to what each row adds to its parameters.

:data:`RULES` lists them; :func:`rule_for` picks the first that matches a module. A rule applies only where it is exact.
A module whose forward is not what the rule assumes (a subclass that computes something else, a norm that is not affine
in its weight, tensors without a batch and token axis) gets no rule, and its parameters go the slow exact way.

Shapes: B rows, S padded length, I inputs, O outputs, H width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from peft.tuners import lora
from torch import nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from gradscope.gradients.layers.adapters import adapter, fits_adapter, is_adapted
from gradscope.gradients.layers.experts import experts, fits_experts, fits_router, is_expert_layer, is_router, router
from gradscope.gradients.layers.factors import GradientFactor, OuterProduct
from gradscope.gradients.layers.layer_call import ForwardCall, LayerCall, Rule, Verdict, is_close, once


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a module that owns parameters; None where there is none."""
    return next((rule for rule in RULES if rule.matches(module)), None)


def looks_up(module: nn.Module) -> bool:
    """Whether a module is given ids: an embedding, with an adapter or without."""
    return isinstance(module, nn.Embedding | lora.Embedding)


def linear(call: LayerCall) -> Mapping[str, GradientFactor]:
    """``nn.Linear``: dW = sum_t d_t a_t^T, db = sum_t d_t.

    Args:
        call: One call, input [B, S, I] and output gradient [B, S, O].

    Returns:
        Factors of ``weight`` [O, I] and ``bias`` [O].
    """
    weight = OuterProduct(left=call.tokens(call.grad), right=call.tokens(call.input))
    return {"weight": weight, **_bias(call)}


def conv1d(call: LayerCall) -> Mapping[str, GradientFactor]:
    """Hugging Face's ``Conv1D`` (GPT-2), a linear layer with its weight transposed: dW = sum_t a_t d_t^T.

    Args:
        call: One call, input [B, S, I] and output gradient [B, S, O].

    Returns:
        Factors of ``weight`` [I, O] and ``bias`` [O].
    """
    weight = OuterProduct(left=call.tokens(call.input), right=call.tokens(call.grad))
    return {"weight": weight, **_bias(call)}


def embedding(call: LayerCall) -> Mapping[str, GradientFactor]:
    """``nn.Embedding``, scaled or not: the row of each id gets the output gradients of that id's tokens.

    Args:
        call: One call, ids [B, S] and output gradient [B, S, H].

    Returns:
        GradientFactor to ``weight`` [V, H].
    """
    module = call.module
    assert isinstance(module, nn.Embedding), "the rule is chosen by type"
    return {"weight": call.lookup(call.grad * _embedding_scale(module), module.padding_idx)}


def norm(call: LayerCall) -> Mapping[str, GradientFactor]:
    """LayerNorm and RMSNorm in any variant: dw = sum_t x_hat_t d_t with x_hat = f(x; w=1) - f(x; w=0), db = sum_t d_t.

    Args:
        call: One call, input and output gradient [B, ..., H]; all axes between are summed, heads included.

    Returns:
        Factors of ``weight`` [H] and ``bias`` [H].
    """
    wide = torch.promote_types(call.grad.dtype, torch.float32)

    def normalized(inputs: torch.Tensor) -> torch.Tensor:
        return (_with_weight(call.module, inputs, 1.0) - _with_weight(call.module, inputs, 0.0)).to(wide)

    return {"weight": call.summed(once(call.input, normalized) * call.grad.to(wide)), **_bias(call)}


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward and _has_known_parameters(module)


def _is_conv1d(module: nn.Module) -> bool:
    return isinstance(module, Conv1D) and type(module).forward is Conv1D.forward and _has_known_parameters(module)


def _is_embedding(module: nn.Module) -> bool:
    if not isinstance(module, nn.Embedding) or not _has_known_parameters(module):
        return False
    return module.max_norm is None and not module.scale_grad_by_freq


def _is_norm(module: nn.Module) -> bool:
    own = dict(module.named_parameters(recurse=False))
    is_flat = "weight" in own and all(part.dim() == 1 for part in own.values())
    return "Norm" in type(module).__name__ and is_flat and _has_known_parameters(module)


def _has_known_parameters(module: nn.Module) -> bool:
    """Whether a module owns nothing but a weight and a bias: one more parameter may enter its output anywhere."""
    return {name for name, _ in module.named_parameters(recurse=False)} <= {"weight", "bias"}


def _is_by_row(call: ForwardCall) -> bool:
    """Whether rows are the first axis of the input and the output, and nothing else is given."""
    return not call.extra and call.input.shape[0] == call.output.shape[0] == call.num_rows


def _is_by_token(call: ForwardCall) -> bool:
    """Whether tokens are the second axis too."""
    num_axes = 2 if looks_up(call.module) else 3
    if not _is_by_row(call) or call.input.dim() != num_axes or call.output.dim() != 3:
        return False
    return call.input.shape[1] <= call.length and call.output.shape[1] == call.input.shape[1]


def _bias(call: LayerCall) -> Mapping[str, GradientFactor]:
    return {} if getattr(call.module, "bias", None) is None else {"bias": call.summed(call.grad)}


def _with_weight(module: nn.Module, inputs: torch.Tensor, value: float) -> torch.Tensor:
    weight = module.get_parameter("weight")
    result = functional_call(module, {"weight": torch.full_like(weight, value)}, (inputs,))
    assert isinstance(result, torch.Tensor), "a norm returns one tensor"
    return result.detach()


def _is_affine(call: ForwardCall) -> Verdict:
    """Whether f(x; w) = f(x; 0) + w (f(x; 1) - f(x; 0)), on the first tokens of the first row."""
    module, few = call.module, (slice(1), *[slice(8)] * (call.input.dim() - 2))
    sample = call.input[few].detach()
    without = _with_weight(module, sample, 0.0)
    weight = module.get_parameter("weight").detach()
    rebuilt = without + weight * (_with_weight(module, sample, 1.0) - without)
    return is_close(rebuilt, call.output[few].detach())


def _is_only_scaled(call: ForwardCall) -> Verdict:
    """Whether the first row's output is what its ids look up, times the module's scale."""
    assert isinstance(call.module, nn.Embedding), "the rule is chosen by type"
    ids = call.input[:1]
    blank = torch.zeros_like(call.module.weight[:1])
    offset = functional_call(call.module, {"weight": blank.expand_as(call.module.weight)}, (ids,)).detach()
    looked_up = nn.functional.embedding(ids, call.module.weight).detach()
    found: torch.Tensor = ~offset.any() & is_close(looked_up * _embedding_scale(call.module), call.output[:1].detach())
    return found


def _embedding_scale(module: nn.Embedding) -> torch.Tensor:
    """What the module multiplies a looked-up row by, [1] or [H]."""
    one = torch.ones((), dtype=module.weight.dtype, device=module.weight.device)
    if type(module).forward is nn.Embedding.forward:
        return one
    first = torch.zeros(1, 1, dtype=torch.long, device=module.weight.device)
    scale: torch.Tensor = functional_call(module, {"weight": one.expand_as(module.weight)}, (first,))
    return scale.detach().flatten()


LINEAR = Rule(matches=_is_linear, fits=_is_by_token, factors=linear)
CONV1D = Rule(matches=_is_conv1d, fits=_is_by_token, factors=conv1d)
EMBEDDING = Rule(
    matches=_is_embedding, fits=lambda call: _is_by_token(call) and _is_only_scaled(call), factors=embedding
)
NORM = Rule(matches=_is_norm, fits=lambda call: _is_by_row(call) and _is_affine(call), factors=norm)
ADAPTER = Rule(matches=is_adapted, fits=lambda call: _is_by_token(call) and fits_adapter(call), factors=adapter)
EXPERTS = Rule(matches=is_expert_layer, fits=fits_experts, factors=experts)
ROUTER = Rule(matches=is_router, fits=fits_router, factors=router)

RULES = (ADAPTER, EXPERTS, ROUTER, LINEAR, CONV1D, EMBEDDING, NORM)
"""Every rule; of several that match a module the first is its own."""
