"""Engine ``stream`` on several processes: each runs its share of the rows, and adds up its piece of every parameter.

Weights lie in parts on all processes, so all of them make the same number of passes; who has fewer batches repeats one
for nothing. (Input, output gradient) pairs wait until all passes are done. Then, parameter by parameter, every process
sends each other process its rows' contribution to that one's piece, and each then has all rows of its own piece: a part
of the Gram matrix, which adds up over parameters and over their pieces. Of an output layer in slices a process's
piece is the ids whose rows of the weight it holds anyway: their output gradients are formed there, and no weight is
sent.

Shapes: N rows, B rows, T tokens, I inputs, O outputs, P processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, cast

import torch
from msgspec import Struct
from msgspec.structs import asdict, replace
from torch import distributed, nn

from gradscope.gradients.engines.loop import GramAccumulator, parameter_blocks
from gradscope.gradients.engines.stream import OnSequence, PartStore, capture_batch
from gradscope.gradients.layers import factors as layer_factors
from gradscope.gradients.layers.capture import Capture
from gradscope.gradients.model.batches import PaddedBatch, split_rows
from gradscope.gradients.model.head import HeadTokens, PlainHead
from gradscope.gradients.model.passes import gradients_on
from gradscope.gradients.model.sharding import local_tensor, reshard, row_bounds
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row
from gradscope.gradients.processes import all_gather, connected_index, num_connected

# Factors as bytes, and their exchange: every process sends a message to every process.
#
# A message is a header, which describes its content, and numbers. Headers go from CPU to CPU, numbers from device to
# device.
_KINDS: dict[str, Callable[..., layer_factors.GradientFactor]] = {
    kind.__name__: kind
    for kind in (layer_factors.OuterProduct, layer_factors.Scatter, layer_factors.Routed, layer_factors.Summed)
}
_ALIGNMENT = 16  # bytes at whose multiples numbers begin, so that they can be looked at as any dtype where they lie


class _Message(Struct, frozen=True, kw_only=True):
    """The contribution of one process's rows to another's piece of a parameter."""

    shape: tuple[int, ...]
    parts: tuple[layer_factors.Part, ...]  # rows and their factors; empty where the process ran no rows


def _exchange(messages: Sequence[_Message], device: torch.device, head: PlainHead | None = None) -> list[_Message]:
    """Send every process its message; of an output layer in slices (``head``: this process's ids) tokens only."""
    packed = [_pack(message) for message in messages]
    headers = [torch.frombuffer(bytearray(header), dtype=torch.uint8) for header, _ in packed]
    bodies = [body for _, body in packed]
    sizes = torch.tensor([[len(header), len(body)] for header, body in zip(headers, bodies, strict=True)])
    incoming = torch.empty_like(sizes)
    distributed.all_to_all_single(incoming, sizes)
    received = zip(
        _sent(headers, incoming[:, 0].tolist(), torch.device("cpu")),
        _sent(bodies, incoming[:, 1].tolist(), device),
        strict=True,
    )
    return [_unpack(bytes(header.numpy()), body, head) for header, body in received]


def _sent(parts: Sequence[torch.Tensor], sizes: list[int], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Bytes for each process, exchanged for those from each."""
    incoming = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    distributed.all_to_all_single(incoming, torch.cat([part.to(device) for part in parts]), sizes, [*map(len, parts)])
    return torch.split(incoming, sizes)


def _pack(message: _Message) -> tuple[bytes, torch.Tensor]:
    """A message as a header and aligned blocks of bytes."""
    tensors: list[torch.Tensor] = []
    parts: list[Any] = []
    for rows, factors in message.parts:
        described = []
        for factor in factors:
            if isinstance(factor, layer_factors.HeadProduct):
                tokens = [part.tensors() for part in factor.tokens]
                values = {name: tuple(part[name] for part in tokens) for name in tokens[0]}
            else:
                values = asdict(cast(Struct, factor))
            described.append((type(factor).__name__, {name: _describe(value) for name, value in values.items()}))
            tensors += [part for value in values.values() for part in (value if isinstance(value, tuple) else [value])]
        parts.append((rows, described))
    header = json.dumps({"shape": message.shape, "parts": parts}).encode()
    flat = [tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors]
    blocks = [torch.nn.functional.pad(block, (0, -len(block) % _ALIGNMENT)) for block in flat]
    return header, torch.cat(blocks) if blocks else torch.empty(0, dtype=torch.uint8)


def _describe(value: Any) -> Any:
    """Shapes and dtype of a field: of one tensor, or of one a row."""
    if isinstance(value, tuple):
        return [[list(part.shape) for part in value], str(value[0].dtype) if value else ""]
    return [list(value.shape), str(value.dtype), "one"]


def _unpack(header: bytes, body: torch.Tensor, head: PlainHead | None) -> _Message:
    """The message again; its tensors are views of the received bytes."""
    fields = json.loads(header)
    offset = 0

    def take(shape: list[int], dtype: str) -> torch.Tensor:
        nonlocal offset
        kind = getattr(torch, dtype.removeprefix("torch."))
        size = torch.Size(shape).numel() * kind.itemsize
        tensor = body[offset : offset + size].view(kind).view(shape)
        offset += size + -size % _ALIGNMENT
        return tensor

    def value_of(described: list[Any]) -> Any:
        shapes, dtype, *single = described
        return take(shapes, dtype) if single else tuple(take(shape, dtype) for shape in shapes)

    def factor_of(kind: str, described: dict[str, Any]) -> layer_factors.GradientFactor:
        values = {name: value_of(value) for name, value in described.items()}
        if kind != layer_factors.HeadProduct.__name__:
            return _KINDS[kind](**values)
        assert head is not None, "all processes know of which parameters there are slices"
        tokens = tuple(HeadTokens(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True))
        return layer_factors.HeadProduct(head=head, tokens=tokens, is_bias=len(fields["shape"]) == 1)

    parts = [(tuple(rows), [factor_of(*part) for part in factors]) for rows, factors in fields["parts"]]
    return _Message(shape=tuple(fields["shape"]), parts=tuple(parts))


# The contribution of each row to a part of a parameter: factors cut along the parameter's longer side.
#
# Of a product left right^T the cut side goes in pieces to the processes, and the other side, the shorter one, goes to
# all of them. Looked-up and routed tokens go only to the process whose rows or experts they are about. An output layer
# in slices is cut along the vocabulary: its tokens go to all, and each process forms the output gradients of its own
# ids.
def _cut_shape(shape: torch.Size, factors: Sequence[layer_factors.GradientFactor]) -> tuple[torch.Size, int]:
    """The shape that factors are about, and the side along which it is cut, 0 or 1."""
    # a table that is only looked up is a row an id, whichever way the parameter holds it
    if factors and all(isinstance(factor, layer_factors.Scatter) for factor in factors):
        width = next(factor.grads[0].shape[1] for factor in factors if isinstance(factor, layer_factors.Scatter))
        return torch.Size((shape.numel() // width, width)), 0
    if any(isinstance(factor, layer_factors.HeadProduct) for factor in factors):
        return shape, 0
    return shape, int(len(shape) == 2 and shape[1] > shape[0])


def _bounds_of(size: int, num_processes: int) -> list[tuple[int, int]]:
    """First and last-plus-one index of each process's piece of a side; empty ones where there are more processes.

    >>> _bounds_of(5, 2)
    [(0, 2), (2, 5)]
    """
    return list(pairwise(size * index // num_processes for index in range(num_processes + 1)))


def _piece_of(factor: layer_factors.GradientFactor, side: int, start: int, stop: int) -> layer_factors.GradientFactor:
    """A factor's contribution to a piece of its parameter, cut along a side; routed experts are cut along the first."""
    if isinstance(factor, layer_factors.OuterProduct):
        left, right = factor.left, factor.right
        if side == 0:
            return layer_factors.OuterProduct(left=tuple(part[:, start:stop] for part in left), right=right)
        return layer_factors.OuterProduct(left=left, right=tuple(part[:, start:stop] for part in right))
    if isinstance(factor, layer_factors.HeadProduct):
        return replace(factor, tokens=tuple(replace(row, ids=row.ids - start) for row in factor.tokens))
    if isinstance(factor, layer_factors.Scatter) and side == 1:
        return layer_factors.Scatter(ids=factor.ids, grads=tuple(part[:, start:stop] for part in factor.grads))
    if isinstance(factor, layer_factors.Scatter):
        is_inside = [(ids >= start) & (ids < stop) for ids in factor.ids]
        return layer_factors.Scatter(ids=_chosen(factor.ids, is_inside, -start), grads=_chosen(factor.grads, is_inside))
    if isinstance(factor, layer_factors.Routed):
        is_inside = [(experts >= start) & (experts < stop) for experts in factor.experts]
        return layer_factors.Routed(
            experts=_chosen(factor.experts, is_inside, -start),
            left=_chosen(factor.left, is_inside),
            right=_chosen(factor.right, is_inside),
        )
    if isinstance(factor, layer_factors.Summed):
        return layer_factors.Summed(rows=factor.rows[:, start:stop] if side == 0 else factor.rows[:, :, start:stop])
    raise TypeError(f"{type(factor).__name__} cannot be cut")


def _chosen(parts: Sequence[torch.Tensor], masks: Sequence[torch.Tensor], shift: int = 0) -> tuple[torch.Tensor, ...]:
    """Row by row the tokens that a mask lets through."""
    return tuple(part[mask] + shift if shift else part[mask] for part, mask in zip(parts, masks, strict=True))


def _deal_rows(lengths: Sequence[int], num_processes: int) -> list[tuple[int, ...]]:
    """Rows dealt out so that processes have about equally many tokens: the longest first, to the one with the fewest.

    The exchange makes inner products of rows wherever these were run, so groups need not stay together.

    >>> _deal_rows([3, 9, 4, 8], 2)
    [(0, 1), (2, 3)]
    """
    shares: list[list[int]] = [[] for _ in range(num_processes)]
    tokens = [0] * num_processes
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        receiver = tokens.index(min(tokens))
        shares[receiver].append(row)
        tokens[receiver] += lengths[row]
    return [tuple(sorted(share)) for share in shares]


def exchanged_gram(
    prepared: PreparedStep, batch_tokens: int, accumulator: GramAccumulator, on_sequence: OnSequence
) -> frozenset[str]:
    """Add this process's pieces of all parameters that a layer rule covers. Returns the names of the others.

    They are the same in every process. ``accumulator`` gets a part of the Gram matrix: the sum over all processes is
    the matrix. ``batch_tokens`` and the budget are of one process.
    """
    policy, plan = prepared.policy, prepared.plan
    batches = _own_batches(prepared, batch_tokens)
    reshard(policy.model)  # layers are known by the parameters that they have outside of a pass
    capture = Capture(policy.model, policy.trainable)
    with PartStore(prepared.budget.pending_bytes) as store:
        for batch, counts in batches:

            def take(name: str, factors: list[layer_factors.GradientFactor], batch: PaddedBatch = batch) -> None:
                store.keep(name, batch.rows, layer_factors.compact(factors))

            # a pass that counts for nothing runs only for the other processes
            sinks = (take, on_sequence) if counts else (lambda *_: None, lambda *_: None)
            store.trim_memory()
            with gradients_on(policy.trainable, on=False):
                capture_batch(prepared, batch, capture, *sinks)
        slow = frozenset(chain.from_iterable(all_gather(sorted(capture.uncovered))))
        reshard(policy.model)
        head, id_bounds = None, None
        if capture.head is not None:  # of its weight each process takes the rows that it holds anyway
            weight, bias = capture.head.module.weight.detach(), capture.head.module.bias
            head = capture.head.with_rows(local_tensor(weight), None if bias is None else local_tensor(bias.detach()))
            head, id_bounds = replace(head, temperature=plan.objective.temperature), row_bounds(weight)
        for name, parameter in policy.trainable.items():
            if name not in slow:
                parts = store.take(name, accumulator.device) if name in store.names else ()
                slices = (head, id_bounds) if name in capture.sliced else (None, None)
                _add_own_piece(accumulator, parameter, parts, *slices)
    return slow


def _own_batches(prepared: PreparedStep, batch_tokens: int) -> list[tuple[PaddedBatch, bool]]:
    """This process's batches, as many as every other process has, and whether each counts."""
    # all must make the same passes: where this process has fewer rows, the step's shortest runs for nothing
    lengths = prepared.plan.lengths
    shares = _deal_rows(lengths, num_connected())
    num_passes = max(len(split_rows([lengths[row] for row in share], batch_tokens)) for share in shares)
    batches = prepared.batches(shares[connected_index()], batch_tokens)
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    fillers = [prepared.batch([shortest])] * (num_passes - len(batches))
    return [*((batch, True) for batch in batches), *((batch, False) for batch in fillers)]


def add_slowly(prepared: PreparedStep, names: Collection[str], accumulator: GramAccumulator) -> None:
    """Add parameters without a layer rule: one ordinary backward pass a row by all processes, each keeping a piece.

    One process may spend the budget's memory on pieces of rows; more parameters take the passes again.
    """
    parameters = {name: prepared.policy.trainable[name] for name in sorted(names)}
    for block in parameter_blocks(parameters, len(prepared.plan.rows), prepared.budget.row_bytes * num_connected()):
        pieces = _pieces_of_rows(prepared, block)
        while pieces:
            accumulator.add_rows(pieces.pop(next(iter(pieces))))


def _pieces_of_rows(prepared: PreparedStep, block: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    """This process's piece of every row's gradient by each parameter of a block, [N, columns] each."""
    policy, plan = prepared.policy, prepared.plan
    row_buffers: dict[str, torch.Tensor] = {}
    for name, parameter in block.items():
        start, stop = _bounds_of(parameter.numel(), num_connected())[connected_index()]
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        row_buffers[name] = torch.zeros(len(plan.rows), stop - start, dtype=dtype, device=parameter.device)
    for index, row in enumerate(plan.rows):

        def keep(name: str, grad: torch.Tensor, index: int = index) -> None:
            start, stop = _bounds_of(grad.numel(), num_connected())[connected_index()]
            row_buffers[name][index] = grad.detach().flatten()[start:stop]

        def weigh(_: int, outputs: torch.Tensor, row: Row = row) -> torch.Tensor:
            return plan.cotangent(row, outputs)

        with gradients_on(policy.trainable, on=False), gradients_on(block, on=True):
            prepared.backward(prepared.batch([index]), weigh, keep, block)
    return row_buffers


def _add_own_piece(
    accumulator: GramAccumulator,
    parameter: nn.Parameter,
    parts: Sequence[layer_factors.Part],
    head: PlainHead | None,
    id_bounds: list[tuple[int, int]] | None,
) -> None:
    """Exchange all rows' contributions to one parameter, and add this process's piece of it.

    Of an output layer in slices ``head`` has this process's ids, ``id_bounds`` the first and last-plus-one of each.
    """
    shape, side = _cut_shape(parameter.shape, [factor for _, factors in parts for factor in factors])
    messages = []
    for start, stop in id_bounds or _bounds_of(shape[side], num_connected()):
        pieces = tuple((rows, [_piece_of(factor, side, start, stop) for factor in factors]) for rows, factors in parts)
        size = (*shape[:side], stop - start, *shape[side + 1 :])
        messages.append(_Message(shape=size, parts=pieces))
    received = _exchange(messages, accumulator.device, head)
    own_parts = [part for message in received for part in message.parts]
    (size,) = {message.shape for message in received if message.parts}
    if all(size):
        accumulator.add_parameter(torch.Size(size), parameter.dtype, own_parts)
