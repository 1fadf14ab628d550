"""The rule of LoRA layers that compute with the parameters of several modules: DoRA, and adapters on embeddings.

A plain LoRA layer calls A and B as linear layers, and their own rule holds. Two kinds do not. An adapter on an
embedding looks A up and multiplies by B, bare parameters both. DoRA multiplies the adapted weight by a magnitude m over
its norm n, takes the base layer's bias b out before and puts it back after, and calls A and B a second time to find n,
which PEFT holds fixed in the backward pass. So the layer has one rule. With base output y, scale s and input x,

    z = b + (m / n) (y - b + s B A x)        A x is the column A_x of an embedding; m / n is 1 without DoRA

Shapes: B rows, S padded length, I inputs (the vocabulary of an embedding), O outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners import lora
from peft.utils.integrations import dequantize_module_weight
from torch import nn

from gradscope.gradients.layers.factors import GradientFactor, OuterProduct
from gradscope.gradients.layers.layer_call import ForwardCall, LayerCall, Verdict, is_close, once


def waits_for_tokens(model: Any) -> bool:
    """Whether an adapter acts only from its invocation tokens on (aLoRA): without them nothing has a gradient."""
    configs = getattr(model, "peft_config", {}).values()
    return any(getattr(config, "alora_invocation_tokens", None) for config in configs)


def adapter_parameters(module: nn.Module) -> tuple[str, ...]:
    """What a layer of these two kinds computes with, beyond what its parts compute when they are called.

    Returns:
        Names of parameters below the module, of its active adapters; empty for every other module.
    """
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


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is a layer of these two kinds with one active adapter."""
    return len(adapter_parameters(module)) > 0 and len(_active(module)) == 1


def adapter(call: LayerCall) -> Mapping[str, GradientFactor]:
    """The whole layer at once: A, B, and with DoRA the magnitudes and the base layer's bias.

    With g = s (m / n) d: dB = sum_t g (A x)^T, dA = sum_t B^T g x^T, dm = sum_t d (y - b + s B A x) / n, db = sum_t d.

    Args:
        call: One call, input [B, S, I] or ids [B, S], and output gradient [B, S, O].

    Returns:
        Factors of A [r, I], B [O, r], m [O] and b [O]; that of an embedding's A as a table by id, [I, r].
    """
    with torch.no_grad():
        layer = _Layer.of(call.module)
        inner = once(call.input, layer.inner)
        grad = call.grad * layer.gain * layer.scale
        below = grad @ layer.up
        factors: dict[str, GradientFactor] = {
            layer.names[1]: OuterProduct(left=call.tokens(grad), right=call.tokens(inner)),
            layer.names[0]: call.lookup(below, layer.padding)
            if layer.is_lookup
            else OuterProduct(left=call.tokens(below), right=call.tokens(call.input)),
        }
        if layer.norm is not None:
            adapted = once(call.input, layer.adapted)
            factors[layer.names[2]] = call.summed(call.grad * (adapted / layer.norm))
        if isinstance(layer.bias, torch.Tensor):
            factors["base_layer.bias"] = call.summed(call.grad)
    return factors


def fits_adapter(call: ForwardCall) -> Verdict:
    """Whether a layer computes what the rule takes it to compute: its first row can be computed again."""
    with torch.no_grad():
        layer = _Layer.of(call.module)
        rebuilt = layer.bias + layer.gain * layer.adapted(call.input[:1].detach())
        return is_close(rebuilt, call.output[:1].detach())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The numbers that one layer computes with."""

    module: Any
    """The layer, a ``lora.Linear`` or ``lora.Embedding``."""
    names: tuple[str, str, str]
    """Names of A, B and m below the layer; there is no m without DoRA."""
    down: torch.Tensor
    """A, [r, I]."""
    up: torch.Tensor
    """B, [O, r]."""
    scale: torch.Tensor | float
    """s, an embedding's own scale included."""
    bias: torch.Tensor | float
    """b, [O]; 0 without one."""
    norm: torch.Tensor | None
    """n, [O]; None without DoRA."""
    gain: torch.Tensor | float
    """m / n, [O]; 1 without DoRA."""

    @classmethod
    def of(cls, module: nn.Module) -> _Layer:
        """The layer's numbers at its present weights."""
        assert isinstance(module, lora.Linear | lora.Embedding), "the rule is chosen by type"
        (name,) = _active(module)
        is_lookup = isinstance(module, lora.Embedding)
        first, second = (
            f"lora_embedding_{part}.{name}" if is_lookup else f"lora_{part}.{name}.weight" for part in "AB"
        )
        magnitude = f"lora_magnitude_vector.{name}.weight"
        down, up = module.get_parameter(first), module.get_parameter(second)
        base, scale = module.get_base_layer(), module.scaling[name]
        bias, norm = getattr(base, "bias", None), None
        if name in module.lora_magnitude_vector:
            weight = dequantize_module_weight(base).to(down.dtype)
            norm = module.lora_magnitude_vector[name].get_weight_norm(weight, up @ down, scale)
        return cls(
            module=module,
            names=(first, second, magnitude),
            down=down,
            up=up,
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
        return self.down.t()[inputs] if self.is_lookup else inputs.to(self.down.dtype) @ self.down.t()

    def adapted(self, inputs: torch.Tensor) -> torch.Tensor:
        """What is left of the output without magnitudes and bias, y - b + s B A x, [..., O]."""
        base: torch.Tensor = self.module.base_layer(inputs)
        return base - self.bias + self.scale * (self.inner(inputs) @ self.up.t())


def _active(module: lora.Linear | lora.Embedding) -> list[str]:
    """The active adapters that the layer has."""
    if module.disable_adapters or module.merged:
        return []
    held = module.lora_embedding_A if isinstance(module, lora.Embedding) else module.lora_A
    return [name for name in module.active_adapters if name in held]
