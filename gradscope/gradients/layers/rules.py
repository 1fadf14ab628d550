"""The rule of each layer kind: from its input and output gradient to what each row adds to its parameters.

A rule applies only where it is exact. A module whose forward is not what the rule assumes (a subclass that computes
something else, a norm that is not affine in its weight, tensors without a batch and token axis) gets no rule, and its
parameters go the slow exact way.

Shapes: B rows, S padded length, I inputs, O outputs, H width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from gradscope.gradients.layers.adapters import adapter_rule, fits_adapter
from gradscope.gradients.layers.experts import experts, fits_experts, fits_router, is_expert_layer, is_router, router
from gradscope.gradients.layers.factors import GradientFactor, OuterProduct
from gradscope.gradients.layers.layer_call import LayerCall, Rule, is_close, once

__all__ = ["LayerCall", "Rule", "fits", "looks_up", "rule_for"]


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a module that owns parameters.

    Args:
        module: The module.

    Returns:
        Its rule, or None where there is none.
    """
    own = dict(module.named_parameters(recurse=False))
    if isinstance(module, BaseTunerLayer):
        return adapter_rule(module)
    if is_expert_layer(module):
        return experts
    if is_router(module):
        return router
    if not own.keys() <= {"weight", "bias"}:
        return None
    forward = type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        return linear
    if isinstance(module, Conv1D) and forward is Conv1D.forward:
        return conv1d
    if isinstance(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq:
        return embedding
    if "Norm" in type(module).__name__ and "weight" in own and all(part.dim() == 1 for part in own.values()):
        return norm
    return None


def fits(
    module: nn.Module,
    given: torch.Tensor,
    returned: torch.Tensor,
    num_rows: int,
    length: int,
    beside: tuple[torch.Tensor, ...] = (),
) -> bool:
    """Whether a rule's assumptions hold for one call.

    Args:
        module: A module that has a rule.
        given: Its input.
        returned: Its output.
        num_rows: B.
        length: S.
        beside: What it was given beside its input.

    Returns:
        True where rows are the first axis and, except for norms, tokens the second; and where a norm is affine in its
        weight and an embedding only scales what it looks up.
    """
    rule = rule_for(module)
    if rule is experts:
        return fits_experts(module, given, beside, returned, num_rows * length)
    if rule is router:
        return not beside and fits_router(module, given, returned, num_rows * length)
    if beside or given.shape[0] != num_rows or returned.shape[0] != num_rows:
        return False
    if rule is norm:
        return _is_affine(module, given, returned)
    by_token = given.dim() == (2 if looks_up(module) else 3) and returned.dim() == 3
    if not by_token or given.shape[1] > length or returned.shape[1] != given.shape[1]:
        return False
    if isinstance(module, BaseTunerLayer):
        return fits_adapter(module, given, returned)
    return not isinstance(module, nn.Embedding) or _embedding_scale(module, given) is not None


def looks_up(module: nn.Module) -> bool:
    """Whether a module is given ids.

    Args:
        module: The module.

    Returns:
        True for an embedding, with an adapter or without.
    """
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
    scale = _embedding_scale(module, call.input)
    assert scale is not None, "checked by fits()"
    return {"weight": call.lookup(call.grad * scale, module.padding_idx)}


def norm(call: LayerCall) -> Mapping[str, GradientFactor]:
    """LayerNorm and RMSNorm in any variant: dw = sum_t x_hat_t d_t with x_hat = f(x; w=1) - f(x; w=0), db = sum_t d_t.

    Args:
        call: One call, input and output gradient [B, ..., H]; all axes between are summed, heads included.

    Returns:
        Factors of ``weight`` [H] and ``bias`` [H].
    """
    wide = torch.promote_types(call.grad.dtype, torch.float32)

    def normalized(given: torch.Tensor) -> torch.Tensor:
        return (_with_weight(call.module, given, 1.0) - _with_weight(call.module, given, 0.0)).to(wide)

    return {"weight": call.summed(once(call.input, normalized) * call.grad.to(wide)), **_bias(call)}


def _bias(call: LayerCall) -> Mapping[str, GradientFactor]:
    return {} if getattr(call.module, "bias", None) is None else {"bias": call.summed(call.grad)}


def _with_weight(module: nn.Module, given: torch.Tensor, value: float) -> torch.Tensor:
    weight = module.get_parameter("weight")
    result = functional_call(module, {"weight": torch.full_like(weight, value)}, (given,))
    assert isinstance(result, torch.Tensor), "a norm returns one tensor"
    return result.detach()


def _is_affine(module: nn.Module, given: torch.Tensor, returned: torch.Tensor) -> bool:
    """Whether f(x; w) = f(x; 0) + w (f(x; 1) - f(x; 0)), on the first tokens of the first row."""
    few = (slice(1), *[slice(8)] * (given.dim() - 2))
    sample = given[few].detach()
    without = _with_weight(module, sample, 0.0)
    weight = module.get_parameter("weight").detach()
    rebuilt = without + weight * (_with_weight(module, sample, 1.0) - without)
    return is_close(rebuilt, returned[few].detach())


def _embedding_scale(module: nn.Embedding, ids: torch.Tensor) -> torch.Tensor | None:
    """What the module multiplies a looked-up row by, [1] or [H]; None where it does something else."""
    if type(module).forward is nn.Embedding.forward:
        return torch.ones((), dtype=module.weight.dtype, device=module.weight.device)
    probe = ids.flatten()[:1].reshape(1, 1)
    blank = torch.zeros((), dtype=module.weight.dtype, device=module.weight.device)
    scale = functional_call(module, {"weight": (blank + 1).expand_as(module.weight)}, (probe,)).detach().flatten()
    offset = functional_call(module, {"weight": blank.expand_as(module.weight)}, (probe,)).detach()
    looked_up = nn.functional.embedding(probe, module.weight).detach()
    returned = module.forward(probe).detach()
    close = torch.allclose(returned, looked_up * scale, rtol=64 * torch.finfo(returned.dtype).eps)
    return scale if close and not bool(offset.any()) else None
