"""Factors as bytes, and the exchange of them: every process has a letter for every process.

A letter is a header, which says what is in it, and numbers. Headers go from CPU to CPU, numbers from device to device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import distributed

from gradscope.gradients.layers.factors import GradientFactor, HeadProduct, OuterProduct, Part, Routed, Scatter, Summed
from gradscope.gradients.model.head.sliced import HeadTokens, PlainHead

_KINDS: dict[str, Callable[..., GradientFactor]] = {
    kind.__name__: kind for kind in (OuterProduct, Scatter, Routed, Summed)
}
_ALIGNMENT = 16
"""Bytes at whose multiples numbers begin, so that they can be looked at as any dtype where they lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What one process's rows add to another's piece of a parameter."""

    shape: tuple[int, ...]
    """The shape of the piece."""
    parts: tuple[Part, ...]
    """Rows and their factors; empty where the process ran no rows."""


def exchange_letters(letters: Sequence[Letter], device: torch.device, head: PlainHead | None = None) -> list[Letter]:
    """Send every process its letter.

    Args:
        letters: One for each process, in their order.
        device: Where the numbers are, and will be.
        head: This process's ids of an output layer in slices, whose tokens alone are sent.

    Returns:
        The letters for this process, in the order of their senders.
    """
    packed = [_pack(letter) for letter in letters]
    headers = [torch.frombuffer(bytearray(header), dtype=torch.uint8) for header, _ in packed]
    bodies = [body for _, body in packed]
    sizes = torch.tensor([[len(header), len(body)] for header, body in zip(headers, bodies, strict=True)])
    coming = torch.empty_like(sizes)
    distributed.all_to_all_single(coming, sizes)
    received = zip(
        _sent(headers, coming[:, 0].tolist(), torch.device("cpu")),
        _sent(bodies, coming[:, 1].tolist(), device),
        strict=True,
    )
    return [_unpack(bytes(header.numpy()), body, head) for header, body in received]


def _sent(parts: Sequence[torch.Tensor], sizes: list[int], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Bytes for each process, exchanged for those from each."""
    came = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    distributed.all_to_all_single(came, torch.cat([part.to(device) for part in parts]), sizes, [*map(len, parts)])
    return torch.split(came, sizes)


def _pack(letter: Letter) -> tuple[bytes, torch.Tensor]:
    """A letter as a header and a whole number of aligned blocks of bytes."""
    tensors: list[torch.Tensor] = []
    parts: list[Any] = []
    for rows, factors in letter.parts:
        described = []
        for factor in factors:
            values = _values(factor)
            described.append((type(factor).__name__, {name: _describe(value) for name, value in values.items()}))
            tensors += [part for value in values.values() for part in (value if isinstance(value, tuple) else [value])]
        parts.append((rows, described))
    header = json.dumps({"shape": letter.shape, "parts": parts}).encode()
    blocks = [_aligned(tensor) for tensor in tensors]
    return header, torch.cat(blocks) if blocks else torch.empty(0, dtype=torch.uint8)


def _values(factor: GradientFactor) -> dict[str, Any]:
    """What is sent of a factor: tensors, or one a row, by name."""
    if isinstance(factor, HeadProduct):
        rows = [tokens.tensors() for tokens in factor.tokens]
        return {name: tuple(row[name] for row in rows) for name in rows[0]}
    return {field.name: getattr(factor, field.name) for field in fields(cast(Any, factor))}


def _describe(value: Any) -> Any:
    """Shapes and dtype of a field: of one tensor, or of one a row."""
    if isinstance(value, tuple):
        return [[list(part.shape) for part in value], str(value[0].dtype) if value else ""]
    return [list(value.shape), str(value.dtype), "one"]


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes, with zeros behind up to the next block."""
    flat = tensor.contiguous().flatten().view(torch.uint8)
    return torch.nn.functional.pad(flat, (0, -len(flat) % _ALIGNMENT))


def _unpack(header: bytes, body: torch.Tensor, head: PlainHead | None) -> Letter:
    """The letter again; its tensors are views of the bytes that came."""
    told = json.loads(header)
    place = 0

    def take(shape: list[int], dtype: str) -> torch.Tensor:
        nonlocal place
        kind = getattr(torch, dtype.removeprefix("torch."))
        size = torch.Size(shape).numel() * kind.itemsize
        tensor = body[place : place + size].view(kind).view(shape)
        place += size + -size % _ALIGNMENT
        return tensor

    def value_of(described: list[Any]) -> Any:
        shapes, dtype, *one = described
        return take(shapes, dtype) if one else tuple(take(shape, dtype) for shape in shapes)

    def factor_of(kind: str, described: dict[str, Any]) -> GradientFactor:
        values = {name: value_of(each) for name, each in described.items()}
        if kind != HeadProduct.__name__:
            return _KINDS[kind](**values)
        assert head is not None, "all processes know of which parameters there are slices"
        tokens = tuple(HeadTokens(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True))
        return HeadProduct(head=head, tokens=tokens, is_bias=len(told["shape"]) == 1)

    parts = []
    for rows, factors in told["parts"]:
        parts.append((tuple(rows), [factor_of(kind, described) for kind, described in factors]))
    return Letter(shape=tuple(told["shape"]), parts=tuple(parts))
