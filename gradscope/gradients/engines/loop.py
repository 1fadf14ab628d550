"""Engine ``loop``: one sequence at a time, ordinary backward, rows stored; the reference, exact for any architecture.

Shapes: N rows, P parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.nn.functional import one_hot

from gradscope.errors import UsageError
from gradscope.gradients.layers.factors import (
    OuterProduct,
    PaddedProduct,
    Part,
    Routed,
    Scatter,
    looked_up_ids,
    renumbered,
)
from gradscope.gradients.model.calls import without_tf32
from gradscope.gradients.model.passes import add_gradients, gradients_on, row_buffers
from gradscope.gradients.plan.prepared_step import PreparedStep

SLICE_BYTES = 64 * 2**20  # memory for the slice of all rows' gradients that exists at one time
CUDA_SLICE_BYTES = 2**29
"""The same on a GPU, which is idle between slices; a float64 copy of twice as many bytes exists as well."""
CAST_BYTES = 2 * 2**20  # memory for the float64 copy of a part of it: on a CPU it should stay in the cache
FLOAT32_COLUMNS = 2**12
"""Columns whose products are added in float32 before they are added in float64, where rows are no better than that."""
TILE = 128  # rows of a tile of the Gram matrix; tiles above the diagonal are not computed


class GramAccumulator:
    """Adds up K = sum over parameters of (rows' gradients) (rows' gradients)^T.

    Products of float32 slices are formed and added in float64: a float32 Gram sees no singular value below about
    2e-4 of the largest.

    Args:
        is_coarse: Whether rows are themselves off by 1e-3 and more, as those of half precision. On a GPU their products
            are then added in float32, a few columns at a time: a float64 copy moves five times the memory.
        row_targets: Row of the matrix that each row of the step is added to, so that rows can be summed; None: each
            is a row of its own.
    """

    def __init__(
        self,
        num_rows: int,
        device: torch.device,
        slice_bytes: int | None = None,
        row_targets: Sequence[int] | None = None,
        *,
        is_coarse: bool = False,
    ) -> None:
        self.num_parameters = 0  # elements of all parameters that were added
        self.device = device  # where slices are formed
        self._row_targets = row_targets
        self._is_coarse = is_coarse
        self._lower = torch.zeros(num_rows, num_rows, dtype=torch.float64, device=device)
        self._slice_bytes = slice_bytes or (CUDA_SLICE_BYTES if device.type == "cuda" else SLICE_BYTES)
        self._cast_bytes = self._slice_bytes if device.type == "cuda" else min(self._slice_bytes, CAST_BYTES)

    @property
    def gram(self) -> torch.Tensor:
        """K, [N, N]."""
        return self._lower.tril() + self._lower.tril(-1).t()

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self._lower.shape[0])

    def add_rows(self, rows: torch.Tensor) -> None:
        """Add columns of the gradient matrix, [N, columns]: one parameter's gradients, or some of them."""
        self.num_parameters += rows.shape[1]
        self._lower += self.products(rows)

    def add_parameter(self, shape: torch.Size, dtype: torch.dtype, parts: Sequence[Part]) -> None:
        """Add one parameter's gradients: per batch the indices of its rows, and the factors of all calls with it."""
        length = shape[0]
        width = shape.numel() // length
        tables = [factor for _, factors in parts for factor in factors if isinstance(factor, Scatter)]
        if len(tables) == sum(len(factors) for _, factors in parts):
            # rows of a table that were never looked up have no gradient, whichever way the parameter holds its rows
            seen, width = looked_up_ids(tables), tables[0].grads[0].shape[1]
            parts, length = renumbered(parts, seen), max(1, len(seen))
        if not self._add_routed(shape, parts):
            self.add_slices((length, width), dtype, parts)
        self.num_parameters += shape.numel()

    def _add_routed(self, shape: torch.Size, parts: Sequence[Part]) -> bool:
        """Add the inner products of experts' matrices [E, O, I] by their factors; False where that is more work.

        Rows meet only where they share an expert: <left right^T, left' right'^T> = <left, left'> <right, right'>.
        """
        calls = [(row, factor, i) for rows, factors in parts for i, row in enumerate(rows) for factor in factors]
        routed = [(row, r.experts[i], r.left[i], r.right[i]) for row, r, i in calls if isinstance(r, Routed)]
        if not routed or len(routed) < len(calls):
            return False
        call_rows, *factors = zip(*routed, strict=True)
        experts, left, right = (torch.cat(tensors).to(self.device) for tensors in factors)
        counts, num_rows = torch.bincount(experts).tolist(), self.num_rows
        if sum(count**2 for count in counts) * (sum(shape[1:]) + num_rows) > num_rows**2 * shape.numel():
            return False
        targets = call_rows if self._row_targets is None else [self._row_targets[row] for row in call_rows]
        token_rows = [row for row, ids in zip(targets, factors[0], strict=True) for _ in range(len(ids))]
        rows = torch.tensor(token_rows, device=self.device)
        for pairs in torch.split(torch.argsort(experts), counts):
            first, second = left[pairs].double(), right[pairs].double()
            indicators = one_hot(rows[pairs], num_rows).double()
            self._lower += indicators.t() @ ((first @ first.t()) * (second @ second.t())) @ indicators
        return True

    def add_slices(self, shape: tuple[int, int], dtype: torch.dtype, parts: Sequence[Part]) -> None:
        """Add matrices that have a parameter's inner products, or a part of them, and are not counted as one."""
        length, width = shape
        working = torch.promote_types(dtype, torch.float32)
        step = max(1, min(length, self._slice_bytes // (width * self.num_rows * working.itemsize)))
        buffer = torch.empty(self.num_rows * step * width, dtype=working, device=self.device)
        products, remaining = self._padded_products(parts)
        is_written = not remaining and sum(len(rows) for rows, _ in products) == self.num_rows
        for start in range(0, length, step):
            stop = min(start + step, length)
            slices = buffer[: self.num_rows * (stop - start) * width].view(self.num_rows, stop - start, width)
            if not is_written:
                slices.zero_()
            for span, product in products:
                product.write_all(start, slices[span.start : span.stop])
            for rows, factors in remaining:
                for local, row in enumerate(rows):
                    target = row if self._row_targets is None else self._row_targets[row]
                    for factor in factors:
                        factor.add_to(local, start, slices[target])
            self._lower += self.products(slices.flatten(1))

    def _padded_products(self, parts: Sequence[Part]) -> tuple[list[tuple[range, PaddedProduct]], Sequence[Part]]:
        """Products that are formed for neighboring rows at once, as a GPU needs it, and the parts that are not."""
        if self.device.type == "cpu" or self._row_targets is not None:
            return [], parts
        products: list[tuple[range, PaddedProduct]] = []
        remaining: list[Part] = []
        free = 4 * self._slice_bytes
        for rows, factors in parts:
            order = sorted(range(len(rows)), key=rows.__getitem__)
            span = range(rows[order[0]], rows[order[-1]] + 1)
            overlaps = any(span.start < other.stop and other.start < span.stop for other, _ in products)
            factor = factors[0] if len(factors) == 1 and len(span) == len(rows) and not overlaps else None
            if isinstance(factor, OuterProduct) and (size := factor.padded_bytes) <= free:
                free -= size
                products.append((span, factor.padded(order)))
            else:
                remaining.append((rows, factors))
        return products, remaining

    def add_products(self, products: torch.Tensor) -> None:
        """Add float64 inner products that are known without rows, right on and below the diagonal."""
        self._lower += products

    def products(self, rows: torch.Tensor) -> torch.Tensor:
        """Inner products of rows [N, columns] in float64, right on and below the diagonal, [N, N]."""
        if self._is_coarse and rows.dtype == torch.float32:  # of a few columns in float32, their sum in float64
            num_parts = rows.shape[1] // FLOAT32_COLUMNS
            num_aligned = num_parts * FLOAT32_COLUMNS
            aligned = rows[:, :num_aligned].view(len(rows), num_parts, FLOAT32_COLUMNS).transpose(0, 1)
            parts = (aligned, rows[:, num_aligned:].unsqueeze(0))
            with without_tf32():
                products = [torch.bmm(part, part.transpose(1, 2)).sum(0, dtype=torch.float64) for part in parts]
            return products[0] + products[1]
        total = torch.zeros_like(self._lower)
        width = max(1, self._cast_bytes // (8 * self.num_rows))
        for start in range(0, rows.shape[1], width):
            wide = rows[:, start : start + width].double()
            for first in range(0, self.num_rows, TILE):
                last = min(first + TILE, self.num_rows)
                total[first:last, :last].addmm_(wide[first:last], wide[:last].t())
        return total


def row_bytes(num_rows: int, trainable: Mapping[str, nn.Parameter]) -> int:
    """Bytes that keeping N rows of all parameters takes."""
    return num_rows * sum(p.numel() * torch.promote_types(p.dtype, torch.float32).itemsize for p in trainable.values())


def parameter_blocks(
    parameters: Mapping[str, nn.Parameter], num_rows: int, max_bytes: int
) -> Iterator[dict[str, nn.Parameter]]:
    """Parameters a few at a time, so that their rows fit; one alone where even that does not."""
    block: dict[str, nn.Parameter] = {}
    for name, parameter in parameters.items():
        if block and row_bytes(num_rows, {**block, name: parameter}) > max_bytes:
            yield block
            block = {}
        block[name] = parameter
    if block:
        yield block


def loop_gram(
    prepared: PreparedStep,
    trainable: Mapping[str, nn.Parameter],
    accumulator: GramAccumulator,
    on_sequence: Callable[[int, torch.Tensor], None],
) -> None:
    """Add the Gram matrix of all rows by some parameters, by one backward pass each.

    Raises:
        UsageError: The rows do not fit.
    """
    plan, max_bytes = prepared.plan, prepared.budget.row_bytes
    needed = row_bytes(len(plan.rows), trainable)
    if needed > max_bytes:
        raise UsageError(
            f"Keeping {len(plan.rows)} gradient rows takes {needed / 2**30:.1f} GiB; the budget is "
            f"{max_bytes / 2**30:.1f} GiB.",
            hint="Use the engine `stream`, or fewer rollouts.",
        )
    parameters = list(trainable.values())
    buffers = row_buffers(parameters, len(plan.rows))
    rows_of: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(plan.rows):
        rows_of[row.sequence].append(index)
    # one forward pass a sequence serves its rows of all channels
    with gradients_on(trainable, on=True):
        for sequence, indices in rows_of.items():
            (outputs,) = prepared.outputs(prepared.batch(indices[:1]))
            detached = outputs.detach()
            for index in indices:
                weights = plan.cotangent(plan.rows[index], detached)
                add_gradients(buffers, index, outputs, parameters, weights, is_last=index == indices[-1])
            on_sequence(sequence, plan.logprobs(sequence, detached))
    # each parameter's rows are dropped once their products are added
    while buffers:
        accumulator.add_rows(buffers.pop(0))
