"""Names of parameters where room is short."""

from __future__ import annotations


def short_tensor(name: str) -> str:
    """A parameter's name without the words that all of them share.

    Returns:
        What tells it from its neighbors.

    Example:
        >>> short_tensor("model.layers.0.self_attn.q_proj.weight")
        '0.self_attn.q_proj'
    """
    return name.removeprefix("model.").removeprefix("layers.").removesuffix(".weight")
