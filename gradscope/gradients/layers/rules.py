"""The layer rules: from a layer's input and output gradient to each row's contribution to its parameters.

:data:`RULES` lists them; :func:`rule_for` picks the first that matches a module. A rule applies only where it is exact.
A module whose forward differs from the rule's assumption (a subclass that computes something else, a norm that is not
affine in its weight, tensors without a batch and token axis) gets no rule, and its parameters go the slow exact way.

Shapes: B rows, S padded length, I inputs, O outputs, H width, T tokens of a row, E experts, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from msgspec import Struct
from peft.tuners import lora
from peft.utils.integrations import dequantize_module_weight
from torch import nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from gradscope.gradients.layers import factors as layer_factors


# The rule of LoRA layers that compute with the parameters of several modules: DoRA, and adapters on embeddings.
#
# A plain LoRA layer calls A and B as linear layers, and their own rule holds. Two kinds do not. An adapter on an
# embedding looks A up and multiplies by B, bare parameters both. DoRA multiplies the adapted weight by a magnitude m
# over its norm n, takes the base layer's bias b out before and puts it back after, and calls A and B a second time to
# find n, which PEFT holds fixed in the backward pass. So the layer has one rule. With base output y, scale s and input
# x,
#
#     z = b + (m / n) (y - b + s B A x)        A x is the column A_x of an embedding; m / n is 1 without DoRA
def waits_for_tokens(model: Any) -> bool:
    """Whether an adapter acts only from its invocation tokens on (aLoRA): without them nothing has a gradient."""
    configs = getattr(model, "peft_config", {}).values()
    return any(getattr(config, "alora_invocation_tokens", None) for config in configs)


def adapter_parameters(module: nn.Module) -> tuple[str, ...]:
    """What a layer of these two kinds computes with beyond its parts: names below it, of active adapters."""
    if not isinstance(module, lora.Linear | lora.Embedding):
        return ()
    names = []
    for name in _active(module):
        if isinstance(module, lora.Embedding):
            names += [f"lora_embedding_A.{name}", f"lora_embedding_B.{name}"]
        elif name in module.lora_magnitude_vector:
            names += [f"lora_A.{name}.weight", f"lora_B.{name}.weight"]
            names += [] if getattr(module.base_layer, "bias", None) is None else ["base_layer.bias"]
        if name in module.lora_magnitude_vector:
            names.append(f"lora_magnitude_vector.{name}.weight")
    return tuple(names)


def adapter(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    """The layer at once: A [r, I], B [O, r], and with DoRA the magnitudes m [O] and the base layer's bias b [O].

    With g = s (m / n) d: dB = sum_t g (A x)^T, dA = sum_t B^T g x^T, dm = sum_t d (y - b + s B A x) / n, db = sum_t d.
    The input is [B, S, I] or ids [B, S]; the factor of an embedding's A is a table by id, [I, r].
    """
    with torch.no_grad():
        layer = _AdapterLayer.from_module(call.module)
        inner = layer_factors.once(call.input, layer.inner)
        grad = call.grad * layer.gain * layer.scale
        below = grad @ layer.lora_b
        factors: dict[str, layer_factors.GradientFactor] = {
            layer.names[1]: layer_factors.OuterProduct(left=call.tokens(grad), right=call.tokens(inner)),
            layer.names[0]: call.lookup(below, layer.padding)
            if layer.is_lookup
            else layer_factors.OuterProduct(left=call.tokens(below), right=call.tokens(call.input)),
        }
        if layer.norm is not None:
            adapted = layer_factors.once(call.input, layer.adapted)
            factors[layer.names[2]] = call.summed(call.grad * (adapted / layer.norm))
        if isinstance(layer.bias, torch.Tensor):
            factors["base_layer.bias"] = call.summed(call.grad)
    return factors


def _fits_adapter(call: layer_factors.ForwardCall) -> layer_factors.Verdict:
    """Whether a layer computes what the rule assumes: its first row can be computed again."""
    with torch.no_grad():
        layer = _AdapterLayer.from_module(call.module)
        rebuilt = layer.bias + layer.gain * layer.adapted(call.input[:1].detach())
        return layer_factors.is_close(rebuilt, call.output[:1].detach())


class _AdapterLayer(Struct, frozen=True, kw_only=True):
    """The numbers that one layer computes with."""

    module: Any  # the layer, a ``lora.Linear`` or ``lora.Embedding``
    names: tuple[str, str, str]  # names of A, B and m below the layer; there is no m without DoRA
    lora_a: torch.Tensor  # [r, I]
    lora_b: torch.Tensor  # [O, r]
    scale: torch.Tensor | float  # s, an embedding's own scale included
    bias: torch.Tensor | float  # b, [O]; 0 without one
    norm: torch.Tensor | None  # n, [O]; None without DoRA
    gain: torch.Tensor | float  # m / n, [O]; 1 without DoRA

    @classmethod
    def from_module(cls, module: nn.Module) -> _AdapterLayer:
        """The layer's numbers at its present weights."""
        assert isinstance(module, lora.Linear | lora.Embedding), "the rule is chosen by type"
        (name,) = _active(module)
        is_lookup = isinstance(module, lora.Embedding)
        first, second = (f"lora_embedding_{x}.{name}" if is_lookup else f"lora_{x}.{name}.weight" for x in "AB")
        magnitude = f"lora_magnitude_vector.{name}.weight"
        lora_a, lora_b = module.get_parameter(first), module.get_parameter(second)
        base, scale = module.get_base_layer(), module.scaling[name]
        bias, norm = getattr(base, "bias", None), None
        if name in module.lora_magnitude_vector:
            weight = dequantize_module_weight(base).to(lora_a.dtype)
            norm = module.lora_magnitude_vector[name].get_weight_norm(weight, lora_b @ lora_a, scale)
        return cls(
            module=module,
            names=(first, second, magnitude),
            lora_a=lora_a,
            lora_b=lora_b,
            scale=scale * getattr(base, "embed_scale", 1.0) if is_lookup else scale,
            bias=0.0 if bias is None or norm is None else bias,
            norm=norm,
            gain=1.0 if norm is None else module.get_parameter(magnitude) / norm,
        )

    @property
    def is_lookup(self) -> bool:
        """Whether the base layer is an embedding."""
        return isinstance(self.module, lora.Embedding)

    @property
    def padding(self) -> int | None:
        """The id whose column of A gets no gradient."""
        padding: int | None = self.module.get_base_layer().padding_idx
        return padding

    def inner(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inner product with A, A x, [..., r]."""
        return self.lora_a.t()[inputs] if self.is_lookup else inputs.to(self.lora_a.dtype) @ self.lora_a.t()

    def adapted(self, inputs: torch.Tensor) -> torch.Tensor:
        """The output without magnitudes and bias, y - b + s B A x, [..., O]."""
        base: torch.Tensor = self.module.base_layer(inputs)
        return base - self.bias + self.scale * (self.inner(inputs) @ self.lora_b.t())


def _active(module: lora.Linear | lora.Embedding) -> list[str]:
    """The active adapters that the layer has."""
    if module.disable_adapters or module.merged:
        return []
    held = module.lora_embedding_A if isinstance(module, lora.Embedding) else module.lora_A
    return [name for name in module.active_adapters if name in held]


# Mixtures of experts as transformers 5 writes them: all experts' matrices in one parameter, and a router.
#
# Qwen3-MoE, Mixtral and their like hold ``gate_up_proj`` [E, 2I, H] and ``down_proj`` [E, H, I] and compute, for token
# t and each chosen expert e with weight p, p W_down,e (act(g) * u) with (g, u) = W_gate_up,e x_t. Inside, tokens lose
# their row; but the layer's input and output still have it, so the inside is computed again, row by row.
def _is_expert_layer(module: nn.Module) -> bool:
    """Whether a module holds experts as the rule knows them: [E, 2I, H] and [E, H, I] without biases."""
    held = dict(module.named_parameters(recurse=False))
    if held.keys() != {"gate_up_proj", "down_proj"} or not callable(getattr(module, "act_fn", None)):
        return False
    first, second = held["gate_up_proj"].shape, held["down_proj"].shape
    return len(first) == len(second) == 3 and first == (second[0], 2 * second[2], second[1])


def _is_router(module: nn.Module) -> bool:
    """Whether a module is a top-k router whose only parameter is its weight [E, H]."""
    held = dict(module.named_parameters(recurse=False))
    return type(module).__name__.endswith("TopKRouter") and held.keys() == {"weight"} and held["weight"].dim() == 2


def returned_by(module: nn.Module, output: Any) -> Any:
    """The output that carries a module's gradient: a router's weights of the chosen experts, elsewhere its output."""
    return output[1] if _is_router(module) and isinstance(output, tuple) and len(output) == 3 else output


def experts(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    """All experts' matrices: dW_down,e = sum p d h^T and dW_gate_up,e = sum dz x^T over the tokens of expert e.

    The input is [B S, H]; further arguments are the experts [B S, K] and their weights [B S, K].
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
        "gate_up_proj": layer_factors.Routed(
            experts=expert_ids, left=tuple(p[1] for p in pairs), right=tuple(p[2] for p in pairs)
        ),
        "down_proj": layer_factors.Routed(
            experts=expert_ids, left=tuple(p[3] for p in pairs), right=tuple(p[4] for p in pairs)
        ),
    }


def router(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    """A router's weight [E, H], by a backward pass of the router alone for each row; its gradient is [B S, K]."""
    rows = []
    for inputs, grad in zip(_rows(call, call.input), _rows(call, call.grad), strict=True):
        with torch.enable_grad():
            weight = call.module.get_parameter("weight").detach().requires_grad_(True)
            shares = returned_by(call.module, functional_call(call.module, {"weight": weight}, (inputs,)))
            (gradient,) = torch.autograd.grad(shares, weight, grad)
        rows.append(gradient.to(torch.promote_types(gradient.dtype, torch.float32)))
    return {"weight": layer_factors.Summed(rows=torch.stack(rows))}


def _fits_experts(call: layer_factors.ForwardCall) -> layer_factors.Verdict:
    """Whether the first tokens' outputs can be computed again, and the batch's tokens and their experts are rows."""
    num_tokens = call.num_rows * call.length
    if len(call.extra) != 2 or not _has_token_rows(call, num_tokens) or call.output.shape != call.input.shape:
        return False
    index, weights = call.extra
    if index.shape != weights.shape or len(index) != num_tokens:
        return False
    few = slice(0, 8)
    zeros = torch.zeros_like(call.output[few])
    expert_ids, _, _, _, inner = _pairs(call.module, call.input[few], index[few], weights[few], zeros)
    down = call.module.get_parameter("down_proj").detach()
    outer = weights[few].reshape(-1, 1) * torch.einsum("phi,pi->ph", down[expert_ids], inner)
    return layer_factors.is_close(outer.view(-1, index.shape[1], outer.shape[1]).sum(1), call.output[few].detach())


def _fits_router(call: layer_factors.ForwardCall) -> layer_factors.Verdict:
    """Whether a router treats tokens one by one: the first of the batch's tokens come out the same alone."""
    num_tokens = call.num_rows * call.length
    if call.extra or not _has_token_rows(call, num_tokens) or len(call.output) != num_tokens:
        return False
    recomputed = returned_by(call.module, call.module(call.input[:8]))
    return isinstance(recomputed, torch.Tensor) and layer_factors.is_close(recomputed, call.output[:8].detach())


def _has_token_rows(call: layer_factors.ForwardCall, num_tokens: int) -> bool:
    return call.input.dim() == 2 and len(call.input) == num_tokens


def _rows(call: layer_factors.LayerCall, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A folded tensor [B S, ...] as each row's tokens, [B][T, ...]."""
    return call.tokens(tensor.reshape(len(call.spans), call.length, *tensor.shape[1:]))


def _pairs(
    module: nn.Module, inputs: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per (token, expert): the expert, dz, x, p d, and the inner activation."""
    gate_up, down = module.get_parameter("gate_up_proj").detach(), module.get_parameter("down_proj").detach()
    expert_ids, num_choices = index.flatten(), index.shape[1]
    tokens = inputs.repeat_interleave(num_choices, 0)
    outer = (weights.reshape(-1, 1) * grad.repeat_interleave(num_choices, 0)).to(down.dtype)
    before = tokens.new_zeros(len(expert_ids), gate_up.shape[1])
    inner_grad = tokens.new_zeros(len(expert_ids), down.shape[2])
    for expert in torch.unique(expert_ids).tolist():
        chosen = expert_ids == expert
        before[chosen] = tokens[chosen] @ gate_up[expert].t()
        inner_grad[chosen] = outer[chosen] @ down[expert]
    with torch.enable_grad():
        before.requires_grad_(True)
        apply_gate = getattr(module, "_apply_gate", None)  # transformers' own, where the experts have one
        if callable(apply_gate):
            inner = apply_gate(before)
        else:
            gate, linear = before.chunk(2, dim=-1)
            inner = module.act_fn(gate) * linear  # type: ignore[operator]
        (before_grad,) = torch.autograd.grad(inner, before, inner_grad)
    return expert_ids, before_grad, tokens, outer, inner.detach()


def rule_for(module: nn.Module) -> layer_factors.Rule | None:
    """The rule of a module that owns parameters; None where there is none."""
    return next((rule for rule in RULES if rule.matches(module)), None)


def is_id_lookup(module: nn.Module) -> bool:
    """Whether a module is given ids: an embedding, with an adapter or without."""
    return isinstance(module, nn.Embedding | lora.Embedding)


def linear(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    """``nn.Linear``: dW = sum_t d_t a_t^T, [O, I], db = sum_t d_t, [O]."""
    weight = layer_factors.OuterProduct(left=call.tokens(call.grad), right=call.tokens(call.input))
    return {"weight": weight, **_bias(call)}


def conv1d(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    """Hugging Face's ``Conv1D`` (GPT-2), a linear layer with its weight transposed: dW = sum_t a_t d_t^T, [I, O]."""
    weight = layer_factors.OuterProduct(left=call.tokens(call.input), right=call.tokens(call.grad))
    return {"weight": weight, **_bias(call)}


def embedding(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    """``nn.Embedding``, scaled or not: the row of each id gets the output gradients of that id's tokens, [V, H]."""
    module = call.module
    assert isinstance(module, nn.Embedding), "the rule is chosen by type"
    return {"weight": call.lookup(call.grad * _embedding_scale(module), module.padding_idx)}


def norm(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    """LayerNorm and RMSNorm in any variant: dw = sum_t x_hat_t d_t with x_hat = f(x; w=1) - f(x; w=0), db = sum_t d_t.

    All axes between the first and the last, [H], are summed, heads included.
    """
    wide = torch.promote_types(call.grad.dtype, torch.float32)

    def normalized(inputs: torch.Tensor) -> torch.Tensor:
        return (_with_weight(call.module, inputs, 1.0) - _with_weight(call.module, inputs, 0.0)).to(wide)

    return {"weight": call.summed(layer_factors.once(call.input, normalized) * call.grad.to(wide)), **_bias(call)}


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    return isinstance(module, kind) and type(module).forward is kind.forward and _has_plain_parameters(module)


def _is_embedding(module: nn.Module) -> bool:
    if not isinstance(module, nn.Embedding) or not _has_plain_parameters(module):
        return False
    return module.max_norm is None and not module.scale_grad_by_freq


def _is_norm(module: nn.Module) -> bool:
    held = dict(module.named_parameters(recurse=False))
    is_flat = "weight" in held and all(part.dim() == 1 for part in held.values())
    return "Norm" in type(module).__name__ and is_flat and _has_plain_parameters(module)


def _has_plain_parameters(module: nn.Module) -> bool:
    """Whether a module owns nothing but a weight and a bias: one more parameter may enter its output anywhere."""
    return {name for name, _ in module.named_parameters(recurse=False)} <= {"weight", "bias"}


def _is_by_row(call: layer_factors.ForwardCall) -> bool:
    """Whether rows are the first axis of the input and the output, and nothing else is given."""
    return not call.extra and call.input.shape[0] == call.output.shape[0] == call.num_rows


def _is_by_token(call: layer_factors.ForwardCall) -> bool:
    """Whether tokens are the second axis too."""
    num_axes = 2 if is_id_lookup(call.module) else 3
    if not _is_by_row(call) or call.input.dim() != num_axes or call.output.dim() != 3:
        return False
    return call.input.shape[1] <= call.length and call.output.shape[1] == call.input.shape[1]


def _bias(call: layer_factors.LayerCall) -> Mapping[str, layer_factors.GradientFactor]:
    return {} if getattr(call.module, "bias", None) is None else {"bias": call.summed(call.grad)}


def _with_weight(module: nn.Module, inputs: torch.Tensor, value: float) -> torch.Tensor:
    weight = module.get_parameter("weight")
    result = functional_call(module, {"weight": torch.full_like(weight, value)}, (inputs,))
    assert isinstance(result, torch.Tensor), "a norm returns one tensor"
    return result.detach()


def _is_affine(call: layer_factors.ForwardCall) -> layer_factors.Verdict:
    """Whether f(x; w) = f(x; 0) + w (f(x; 1) - f(x; 0)), on the first tokens of the first row."""
    module, few = call.module, (slice(1), *[slice(8)] * (call.input.dim() - 2))
    sample = call.input[few].detach()
    offset = _with_weight(module, sample, 0.0)
    weight = module.get_parameter("weight").detach()
    rebuilt = offset + weight * (_with_weight(module, sample, 1.0) - offset)
    return layer_factors.is_close(rebuilt, call.output[few].detach())


def _is_only_scaled(call: layer_factors.ForwardCall) -> layer_factors.Verdict:
    """Whether the first row's output is the rows that its ids look up, times the module's scale."""
    assert isinstance(call.module, nn.Embedding), "the rule is chosen by type"
    ids = call.input[:1]
    blank = torch.zeros_like(call.module.weight[:1])
    offset = functional_call(call.module, {"weight": blank.expand_as(call.module.weight)}, (ids,)).detach()
    looked_up = nn.functional.embedding(ids, call.module.weight).detach()
    verdict: torch.Tensor = ~offset.any() & layer_factors.is_close(
        looked_up * _embedding_scale(call.module), call.output[:1].detach()
    )
    return verdict


def _embedding_scale(module: nn.Embedding) -> torch.Tensor:
    """The module's factor on a looked-up row, [1] or [H]."""
    unit = torch.ones((), dtype=module.weight.dtype, device=module.weight.device)
    if type(module).forward is nn.Embedding.forward:
        return unit
    first = torch.zeros(1, 1, dtype=torch.long, device=module.weight.device)
    scale: torch.Tensor = functional_call(module, {"weight": unit.expand_as(module.weight)}, (first,))
    return scale.detach().flatten()


LINEAR = layer_factors.Rule(matches=lambda module: _is_plain(module, nn.Linear), fits=_is_by_token, factors=linear)
CONV1D = layer_factors.Rule(matches=lambda module: _is_plain(module, Conv1D), fits=_is_by_token, factors=conv1d)
EMBEDDING = layer_factors.Rule(
    matches=_is_embedding, fits=lambda call: _is_by_token(call) and _is_only_scaled(call), factors=embedding
)
NORM = layer_factors.Rule(matches=_is_norm, fits=lambda call: _is_by_row(call) and _is_affine(call), factors=norm)
ADAPTER = layer_factors.Rule(
    matches=lambda module: len(adapter_parameters(module)) > 0 and len(_active(module)) == 1,
    fits=lambda call: _is_by_token(call) and _fits_adapter(call),
    factors=adapter,
)
EXPERTS = layer_factors.Rule(matches=_is_expert_layer, fits=_fits_experts, factors=experts)
ROUTER = layer_factors.Rule(matches=_is_router, fits=_fits_router, factors=router)

RULES = (ADAPTER, EXPERTS, ROUTER, LINEAR, CONV1D, EMBEDDING, NORM)
"""Every rule; of several that match a module the first is its own."""
