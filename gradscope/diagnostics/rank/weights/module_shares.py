"""Which kinds of modules the gradient of a step is in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from gradscope.estimate import Estimate
from gradscope.results.update import ModuleShare

if TYPE_CHECKING:
    from gradscope.gradients.step.directions import TensorNorm

Module = Literal["output head", "embedding", "attention", "mlp", "other"]
_WORDS: dict[Module, tuple[str, ...]] = {
    "output head": ("lm_head", "embed_out", "output_layer"),
    "embedding": ("embed", "wte", "wpe"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "ffn", "experts", "block_sparse_moe"),
}
"""What the names of such weights hold; the first kind that a name fits counts."""


def module_of(tensor: str) -> Module:
    """The kind of module that a weight is of, by its name.

    Returns:
        The kind; norms within attention count as attention.

    Example:
        >>> [module_of(name) for name in ("lm_head.weight", "layers.0.self_attn.q_proj.weight", "norm.weight")]
        ['output head', 'attention', 'other']
    """
    return next((kind for kind, words in _WORDS.items() if any(word in tensor for word in words)), "other")


def module_shares(step: int, norms: Sequence[TensorNorm]) -> list[ModuleShare]:
    """The parts of a gradient by kind of module.

    Args:
        norms: Of every parameter's gradient.

    Returns:
        One a kind that has a weight; none where the gradient is zero.
    """
    energies: dict[Module, float] = {}
    numbers: dict[Module, int] = {}
    for one in norms:
        kind = module_of(one.tensor)
        energies[kind] = energies.get(kind, 0.0) + one.norm**2
        numbers[kind] = numbers.get(kind, 0) + one.num_entries
    whole = sum(energies.values())
    return [
        ModuleShare(
            step=step,
            module=kind,
            norm=Estimate.exact(math.sqrt(energies[kind])),
            energy_share=Estimate.exact(energies[kind] / whole),
            frac_parameters=Estimate.exact(numbers[kind] / sum(numbers.values())),
        )
        for kind in get_args(Module)
        if kind in energies and whole > 0
    ]
