"""Engine ``lockstep``: exact rows of single tokens; many cotangents go down one graph, layer by layer.

The row of a token is the gradient of its own log-probability. One forward pass of the sequence up to the last token of
a chunk serves all tokens of the chunk (a causal model gives later positions no part in them). Above the last decoder
layer a token touches only its own position, so one ordinary backward pass serves the chunk. Below, the cotangents of
all tokens go through one layer at a time; the output gradients of that layer exist for all rows, its parameters are
added to the Gram, and only the hidden state's cotangents go on. No row of all parameters ever exists.

This is not the decomposition of one backward pass by position: a token's loss also reaches the keys and values of
earlier positions, and those terms belong to its row.

Sketches of all token rows of a group are made likewise, chunk by chunk; memory is one chunk's layer and N x k numbers.

Shapes: N token rows, C rows of a chunk, S tokens of its sequence, H width, O outputs, I inputs, K positions of all
sequences, k buckets.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from gradscope.errors import UsageError, VerificationError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.factors import (
    ForwardCall,
    GradientFactor,
    LayerCall,
    OuterProduct,
    Part,
    Scatter,
    looked_up_ids,
    renumbered,
)
from gradscope.gradients.layers.trace import ForwardTrace, TracedCall, Tracer
from gradscope.gradients.model.budget import free_cuda_bytes
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.tokens.rows import Chunk, token_loop_rows


# Fewer columns for the same inner products: factors that token rows share are extracted before any row is formed.
#
# Two things are special about token rows. All rows of a sequence have the same input to a layer; only output gradients
# are a row's own. Inner products of sum_p d_p a_p' see no more of the inputs than the space that they span, so in an
# orthonormal basis of it a row's matrix has as many columns as there are positions, where that is less than the layer's
# inputs. And above the decoder layers a row is one position, so its matrix has rank one: (d_t . d_s)(h_t . h_s) is the
# inner product, and the head's O x I matrix need not exist.
def _add_token_parameter(
    accumulator: GramAccumulator, shape: torch.Size, dtype: torch.dtype, parts: Sequence[Part]
) -> None:
    """Add one parameter's gradients of token rows, by chunk, in the fewest columns that keep products."""
    products = [(rows, factor) for rows, factors in parts for factor in factors if isinstance(factor, OuterProduct)]
    remaining = [(rows, [f for f in factors if not isinstance(f, OuterProduct)]) for rows, factors in parts]
    remaining = [(rows, factors) for rows, factors in remaining if factors]
    product_rows = [row for rows, _ in products for row in rows]
    if (
        products
        and len(product_rows) == len(set(product_rows))  # each row is one outer product
        and all(len(left) == 1 for _, factor in products for left in factor.left)
        and all(isinstance(factor, Scatter) for _, factors in remaining for factor in factors)
    ):
        _add_rank_one(accumulator, shape, dtype, products, remaining)
    elif products and not remaining and (narrower := _in_common_basis(products)):
        accumulator.add_slices(narrower[0], dtype, narrower[1])
    else:
        accumulator.add_parameter(shape, dtype, parts)
        return
    accumulator.num_parameters += shape.numel()


Uses = list[tuple[tuple[int, ...], OuterProduct]]


def _add_rank_one(
    accumulator: GramAccumulator, shape: torch.Size, dtype: torch.dtype, products: Uses, tables: Sequence[Part]
) -> None:
    """Matrices d h', and a tied table's rows of the ids that occur: of those, rows are formed."""
    left, right = (torch.zeros(accumulator.num_rows, size, dtype=dtype, device=accumulator.device) for size in shape)
    for rows, factor in products:
        left[list(rows)], right[list(rows)] = torch.cat(factor.left).to(left), torch.cat(factor.right).to(right)
    if tables:
        seen = looked_up_ids(factor for _, factors in tables for factor in factors)
        looked_up: list[Part] = [
            (rows, [OuterProduct(left=tuple(part[:, seen] for part in factor.left), right=factor.right)])
            for rows, factor in products
        ]
        accumulator.add_slices((len(seen), shape[1]), dtype, [*looked_up, *renumbered(tables, seen)])
        left[:, seen] = 0
    accumulator.add_products(accumulator.products(left) * accumulator.products(right))


def _in_common_basis(products: Uses) -> tuple[tuple[int, int], list[Part]] | None:
    """Matrices [O, K] with the same inner products; None where that is not less."""
    # a transposed layer (GPT-2's Conv1D) shares its left factor
    for uses in (products, [(rows, OuterProduct(left=factor.right, right=factor.left)) for rows, factor in products]):
        shared: dict[tuple[int, ...], torch.Tensor] = {}
        for right in (right for _, factor in uses for right in factor.right):
            if len(right) > len(shared.get(_storage_key(right), ())):
                shared[_storage_key(right)] = right
        num_columns = sum(len(part) for part in shared.values())
        if num_columns < next(iter(shared.values())).shape[1]:
            # each input's coordinates in an orthonormal basis of all of them
            stacked = torch.cat(list(shared.values()))
            triangle = torch.linalg.qr(stacked.double().t(), mode="r").R
            wide = torch.promote_types(stacked.dtype, torch.float32)
            coordinates = triangle.t().to(wide).split([len(part) for part in shared.values()])
            coordinates_of = dict(zip(shared, coordinates, strict=True))
            parts = list[Part]()
            for rows, factor in uses:
                narrow = tuple(coordinates_of[_storage_key(right)][: len(right)] for right in factor.right)
                parts.append((rows, [OuterProduct(left=factor.left, right=narrow)]))
            return (uses[0][1].left[0].shape[1], num_columns), parts
    return None


def _storage_key(tensor: torch.Tensor) -> tuple[int, ...]:
    """A factor's start in memory: rows of one sequence have prefixes of one tensor."""
    return (tensor.data_ptr(), *tensor.stride())


LAYER_BYTES = 2**32
"""Memory for the output gradients of one decoder layer over all rows; of a GPU a quarter of what is free, if more."""


def lockstep_gram(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    chunks: Sequence[Chunk],
    temperature: float,
    accumulator: GramAccumulator,
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers; the names of the others."""

    def add(name: str, parts: list[Part]) -> None:
        _add_token_parameter(accumulator, trainable[name].shape, trainable[name].dtype, parts)

    return lockstep(model, trainable, chunks, temperature, add)


def lockstep(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    chunks: Sequence[Chunk],
    temperature: float,
    consume: Callable[[str, list[Part]], None],
) -> frozenset[str]:
    """Pass on each row's contribution to each parameter that a layer rule covers; the names of the others.

    ``consume`` is called with a parameter's name and, by chunk, the factors of all calls with it.
    """
    tracer = Tracer(model, trainable, temperature)
    longest: dict[int, _Line] = {}  # whose inputs the others of its sequence have: later tokens change none before them
    by_index = {}
    for index in sorted(range(len(chunks)), key=lambda index: -chunks[index].positions[-1]):
        chunk = chunks[index]
        by_index[index] = _Line(tracer, chunk, longest.get(chunk.sequence))
        longest.setdefault(chunk.sequence, by_index[index])
    lines = [by_index[index] for index in range(len(chunks))]
    if not all(line.trace.is_cut for line in lines):
        return frozenset(trainable)
    collected: dict[str, list[Part]] = defaultdict(list)
    lowest, device = _lowest_segments(tracer, lines), lines[0].trace.logprobs.device
    max_bytes = LAYER_BYTES if device.type != "cuda" else max(LAYER_BYTES, free_cuda_bytes(device) // 4)
    for segment in reversed(range(len(lines[0].trace.segments))):
        _require_fit(lines, segment, max_bytes)
        for line in lines:
            for name, calls in line.descend(segment).items():
                collected[name].append((line.chunk.rows, calls))
        for name in [name for name in collected if lowest[name] == segment]:
            parts = collected.pop(name)
            if name not in tracer.layers.uncovered:
                consume(name, parts)
    return frozenset(tracer.layers.uncovered | (set(trainable) - set(lowest)))


class _Line:
    """One chunk on its way down: its graph and the cotangent of the hidden state that it has reached."""

    def __init__(self, tracer: Tracer, chunk: Chunk, longest: _Line | None = None) -> None:
        self.chunk, self._tracer = chunk, tracer
        self.trace: ForwardTrace = tracer.trace(chunk.prefix)
        self._cotangent: torch.Tensor | None = None
        if longest is not None:
            self.trace.share_inputs(longest.trace)

    def descend(self, segment: int) -> dict[str, list[GradientFactor]]:
        """The contributions of the calls of one segment to each parameter; the segments must come from the top down."""
        top = len(self.trace.segments) - 1
        calls = [call for call in self.trace.segments[segment] if self._tracer.layers.covered_by(call.module)]
        grads = self._from_the_loss(calls) if segment == top else self._from_above(segment, calls)
        factors_of: dict[str, list[GradientFactor]] = defaultdict(list)
        for call, grad in zip(calls, grads, strict=True):
            owned = self._tracer.layers.covered_by(call.module)
            rows = None
            if grad is not None and call.is_intact and segment == top:
                rows = self._by_position(call, grad)
            elif grad is not None and call.is_intact:  # each row ends at its own position
                stops = [position + 1 for position in self._predicting_positions]
                rows = call.as_rows(grad, stops, self.trace.length)
            if rows is None:
                self._tracer.layers.uncovered.update(owned.values())
                continue
            factors = self._tracer.layers.rules[call.module].factors(rows)
            for local, name in owned.items():
                factors_of[name].append(factors[local])
        self.trace.segments[segment] = []
        return factors_of

    @property
    def _predicting_positions(self) -> list[int]:
        """The position that predicts each token, [C]."""
        return [self.trace.start + position - 1 for position in self.chunk.positions]

    def _from_the_loss(self, calls: Sequence[TracedCall]) -> list[torch.Tensor | None]:
        """One ordinary backward pass for all rows: each keeps to its own position."""
        chosen = torch.zeros_like(self.trace.logprobs)
        chosen[list(self.chunk.positions)] = 1.0
        last = self.trace.cuts[-1]
        targets = [last, *(call.output for call in calls)] if last.requires_grad else [call.output for call in calls]
        if not targets:
            return []
        grads: list[torch.Tensor | None] = []
        grads += torch.autograd.grad(self.trace.logprobs, targets, chosen, allow_unused=True)
        if last.requires_grad:
            grad, positions = grads.pop(0), self._predicting_positions
            if grad is not None:
                self._cotangent = grad.new_zeros(len(positions), *grad.shape)
                self._cotangent[range(len(positions)), 0, positions] = grad[0, positions]
        return grads

    def _from_above(self, segment: int, calls: Sequence[TracedCall]) -> list[torch.Tensor | None]:
        """The cotangents of all rows through one segment at once."""
        if self._cotangent is None:
            return [None] * len(calls)
        below = self.trace.cuts[segment - 1] if segment > 0 else None
        continues = below is not None and below.requires_grad
        targets = [call.output for call in calls]
        if continues:
            assert below is not None, "there is a cut below every segment but the lowest"
            targets = [below, *targets]
        grads: list[torch.Tensor | None] = []
        if targets:
            above, cotangent = self.trace.cuts[segment], self._cotangent
            grads += torch.autograd.grad(above, targets, cotangent, is_grads_batched=True, allow_unused=True)
        self._cotangent = grads.pop(0) if continues else None
        return grads

    def _by_position(self, call: TracedCall, grad: torch.Tensor) -> LayerCall | None:
        """A call above the decoder layers: each row is one position. None where positions are not the second axis."""
        missing = self.trace.length - grad.shape[1]
        positions = [position - missing for position in self._predicting_positions]
        if grad.dim() != 3 or call.input.dim() != 3 or call.input.shape[1] != grad.shape[1] or min(positions) < 0:
            return None
        spans = ((0, 1),) * len(positions)
        inputs, returned = call.input[0, positions].unsqueeze(1), call.output.detach()[0, positions].unsqueeze(1)
        single = ForwardCall(module=call.module, input=inputs, output=returned, num_rows=len(positions), length=1)
        if not self._tracer.layers.rules[call.module].fits(single):
            return None
        return LayerCall(module=call.module, input=inputs, grad=grad[0, positions].unsqueeze(1), spans=spans, length=1)


def _lowest_segments(tracer: Tracer, lines: Sequence[_Line]) -> dict[str, int]:
    """The last segment, on the way down, in which each parameter is used."""
    lowest: dict[str, int] = {}
    for line in lines:
        for segment, calls in reversed(list(enumerate(line.trace.segments))):
            for call in calls:
                names = tracer.layers.owned[call.module].values()
                lowest.update({name: min(segment, lowest.get(name, segment)) for name in names})
    return lowest


def _require_fit(lines: Sequence[_Line], segment: int, max_bytes: int) -> None:
    """Refuse before a layer's output gradients fill the memory."""
    if segment == len(lines[0].trace.segments) - 1:
        return
    needed = sum(
        len(line.chunk.rows) * _elements_of_row(call) * call.output.element_size()
        for line in lines
        for call in line.trace.segments[segment]
    )
    if needed > max_bytes:
        rows = sum(len(line.chunk.rows) for line in lines)
        raise UsageError(
            f"The output gradients of one layer over {rows} token rows take {needed / 2**30:.1f} GiB; the budget is "
            f"{max_bytes / 2**30:.1f} GiB.",
            hint=f"Take fewer tokens: --max-tokens {max(1, rows * max_bytes // needed)}",
        )


def _elements_of_row(call: TracedCall) -> int:
    """Elements that one call takes of a row: its output gradients; of experts the factors of every routed token."""
    if not call.extra:
        return call.output.numel()
    _, gate_up_width, width = call.module.get_parameter("gate_up_proj").shape
    return call.extra[0].numel() * (2 * width + gate_up_width + gate_up_width // 2)


# CountSketch of gradient rows: k numbers a row, whose inner products are those of the rows, unbiased.
#
# Column c of a row is added, with a random sign, to bucket h(c). Here h is a random shift within each stretch of k
# columns: two columns of one stretch never meet, two of different stretches meet with probability 1/k, which is all
# that the variance rests on; and adding needs no scatter. For rows x, y: E[x~ . y~] = x . y with variance at most
# (|x|^2 |y|^2 + (x . y)^2) / k, so for all rows |K~ - K|_F <= sqrt((1 + 1/PR) / k) tr K in root mean square, PR the
# participation ratio. No eigenvalue is off by more than that norm.
#
# Source: Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams" (ICALP 2002).
SLICE_BYTES = 64 * 2**20  # memory for the slice of some rows' gradients that exists at one time
HASHED_COLUMNS, CUDA_HASHED_COLUMNS = 2**16, 2**22
"""Columns whose buckets and signs exist at one time: on a CPU they should stay in the cache."""


class Sketch:
    """Rows in k buckets, from slices of the rows' gradients that take ``slice_bytes`` of memory."""

    def __init__(
        self, num_rows: int, num_buckets: int, seed: int, device: torch.device, slice_bytes: int = SLICE_BYTES
    ) -> None:
        self.rows = torch.zeros(num_rows, num_buckets, dtype=torch.float64, device=device)
        """The sketches, float64, [N, k]."""
        self._seed, self._slice_bytes = seed, slice_bytes

    @property
    def gram(self) -> torch.Tensor:
        """Inner products of the sketches, [N, N]."""
        return self.rows @ self.rows.t()

    def add_parameter(self, name: str, shape: torch.Size, dtype: torch.dtype, parts: Sequence[Part]) -> None:
        """Add one parameter's gradients: per chunk the indices of its rows and the factors of all calls with it.

        By its name the same columns meet in the same way, whichever rows come together.
        """
        length, width = shape[0], shape.numel() // shape[0]
        working = torch.promote_types(dtype, torch.float32)
        for rows, factors in parts:
            step = max(1, min(length, self._slice_bytes // (width * len(rows) * working.itemsize)))
            single, product = factors[0], None
            if self.rows.device.type != "cpu" and len(factors) == 1 and isinstance(single, OuterProduct):
                product = single.padded(range(len(rows)))
            for start, stop in _touched(factors, length, step):
                slices = torch.zeros(len(rows), stop - start, width, dtype=working, device=self.rows.device)
                if product is not None:
                    product.write_all(start, slices)
                else:
                    for local in range(len(rows)):
                        for factor in factors:
                            factor.add_to(local, start, slices[local])
                self.add_rows(name, start * width, rows, slices.flatten(1))

    def add_rows(self, name: str, first: int, rows: Sequence[int], columns: torch.Tensor) -> None:
        """Add some columns of some rows."""
        num_buckets, device = self.rows.shape[1], self.rows.device
        sums = torch.zeros(len(rows), num_buckets, dtype=torch.float64, device=device)
        seed, bits = zlib.crc32(f"{self._seed} {name}".encode()), torch.arange(64, device=device)
        max_columns = HASHED_COLUMNS if device.type == "cpu" else CUDA_HASHED_COLUMNS
        for start in range(0, columns.shape[1], max_columns):
            part, low = columns[:, start : start + max_columns], first + start
            column = torch.arange(low, low + part.shape[1], device=device)
            words = torch.arange(low // 64, (low + part.shape[1] - 1) // 64 + 1, device=device)
            is_negative = ((_mixed(words, seed)[:, None] >> bits) & 1).flatten()[low % 64 :][: part.shape[1]]
            bucket = (column + (_mixed(column // num_buckets, ~seed) >> 1)).remainder(num_buckets)
            sums.index_add_(1, bucket, (part * (1 - 2 * is_negative).to(part.dtype)).double())
        self.rows[list(rows)] += sums


def _mixed(numbers: torch.Tensor, seed: int) -> torch.Tensor:
    """A random 64-bit integer of each, the same on every device: SplitMix64 (Steele, Lea and Flood 2014)."""
    mixed = numbers * -0x61C8864680B583EB + seed
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return mixed ^ ((mixed >> 31) & ((1 << 33) - 1))


def _touched(factors: Sequence[GradientFactor], length: int, step: int) -> list[tuple[int, int]]:
    """Slices of the first dimension that can hold anything: of a table only the ids that were looked up."""
    if not all(isinstance(factor, Scatter) for factor in factors):
        return [(start, min(start + step, length)) for start in range(0, length, step)]
    return [(index, index + 1) for index in looked_up_ids(factors).tolist()]


def sketch_rows(
    policy: MeasuredPolicy, chunks: Sequence[Chunk], temperature: float, num_buckets: int, seed: int
) -> tuple[Sketch, frozenset[str]]:
    """Sketch token rows, parameters without a layer rule by one backward pass a row: these are named too."""
    sketch = Sketch(sum(len(chunk.rows) for chunk in chunks), num_buckets, seed, policy.device)
    slow: frozenset[str] = frozenset()
    for chunk in chunks:
        slow |= _add_chunk(sketch, policy, chunk, temperature)
    return sketch, slow


def sketch_plain_rows(
    policy: MeasuredPolicy, chunks: Sequence[Chunk], temperature: float, num_buckets: int, seed: int
) -> Sketch:
    """The same sketches by one plain backward pass a row, against which the others are checked."""
    sketch = Sketch(sum(len(chunk.rows) for chunk in chunks), num_buckets, seed, policy.device)
    for chunk in chunks:
        _add_slowly(sketch, policy, chunk, temperature, list(policy.trainable))
    return sketch


def _add_chunk(sketch: Sketch, policy: MeasuredPolicy, chunk: Chunk, temperature: float) -> frozenset[str]:
    """One chunk's rows; returns the parameters that went the slow way."""
    added: set[str] = set()

    def add(name: str, parts: list[Part]) -> None:
        sketch.add_parameter(name, policy.trainable[name].shape, policy.trainable[name].dtype, parts)
        added.add(name)

    slow = lockstep(policy.model, policy.trainable, [chunk], temperature, add)
    for name in sorted(slow):  # one at a time: a row of all of them may not fit
        _add_slowly(sketch, policy, chunk, temperature, [name])
    missing = set(policy.trainable) - added - slow
    if missing:
        raise VerificationError(
            f"The sketches of token rows miss {len(missing)} parameters, among them {min(missing)}."
        )
    return slow


def _add_slowly(sketch: Sketch, policy: MeasuredPolicy, chunk: Chunk, temperature: float, names: Sequence[str]) -> None:
    """Some parameters' gradients by one backward pass a row."""
    local, remaining = replace(chunk, rows=tuple(range(len(chunk.rows)))), iter(names)

    def add(rows: torch.Tensor) -> None:
        sketch.add_rows(next(remaining), 0, chunk.rows, rows)

    token_loop_rows(policy.model, {name: policy.trainable[name] for name in names}, [local], temperature, add)
