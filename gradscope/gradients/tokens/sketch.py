"""Sketches of all token rows of a group: lockstep, chunk by chunk; memory is one chunk's layer and N x k numbers.

Shapes: N token rows, C rows of a chunk, k buckets.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from gradscope.errors import VerificationError
from gradscope.gradients.layers.factors import GradientFactor, Part, Scatter
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.tokens.lockstep import lockstep
from gradscope.gradients.tokens.rows import Chunk, token_loop_rows

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


class Sketch:
    """Rows in k buckets.

    Args:
        slice_bytes: Memory for one slice of rows' gradients.
    """

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

    def add_parameter(
        self,
        name: str,
        shape: torch.Size,
        dtype: torch.dtype,
        parts: Sequence[tuple[Sequence[int], Sequence[GradientFactor]]],
    ) -> None:
        """Add one parameter's gradients: per chunk the indices of its rows and the factors of all calls with it.

        By its name the same columns meet in the same way, whichever rows come together.
        """
        length, width = shape[0], shape.numel() // shape[0]
        working = torch.promote_types(dtype, torch.float32)
        for rows, factors in parts:
            step = max(1, min(length, self._slice_bytes // (width * len(rows) * working.itemsize)))
            for start, stop in _touched(factors, length, step):
                slices = torch.zeros(len(rows), stop - start, width, dtype=working, device=self.rows.device)
                for local in range(len(rows)):
                    for factor in factors:
                        factor.add_to(local, start, slices[local])
                self.add_rows(name, start * width, rows, slices.flatten(1))

    def add_rows(self, name: str, first: int, rows: Sequence[int], columns: torch.Tensor) -> None:
        """Add some columns of some rows."""
        num_buckets = self.rows.shape[1]
        sums = torch.zeros(len(rows), num_buckets, dtype=torch.float64, device=self.rows.device)
        stop = first + columns.shape[1]
        for stretch in range(first // num_buckets, -(-stop // num_buckets)):
            shift, signs = self._hash(name, stretch)
            low = max(first, stretch * num_buckets)
            high = min(stop, (stretch + 1) * num_buckets)
            inside = slice(low - stretch * num_buckets, high - stretch * num_buckets)
            signed = columns[:, low - first : high - first] * signs[inside]
            bucket = (inside.start + shift) % num_buckets
            room = min(signed.shape[1], num_buckets - bucket)
            sums[:, bucket : bucket + room] += signed[:, :room]
            sums[:, : signed.shape[1] - room] += signed[:, room:]
        self.rows[list(rows)] += sums

    def _hash(self, name: str, stretch: int) -> tuple[int, torch.Tensor]:
        """The shift and the signs [k] of one stretch of columns."""
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode()), stretch])
        num_buckets = self.rows.shape[1]
        shift = int(rng.integers(num_buckets))
        signs = 2 * rng.integers(2, size=num_buckets, dtype=np.int8) - 1
        return shift, torch.from_numpy(signs).to(self.rows.device, non_blocking=True)


def _touched(factors: Sequence[GradientFactor], length: int, step: int) -> list[tuple[int, int]]:
    """Slices of the first dimension that can hold anything: of a table only the ids that were looked up."""
    scatters = [factor for factor in factors if isinstance(factor, Scatter)]
    if len(scatters) < len(factors):
        return [(start, min(start + step, length)) for start in range(0, length, step)]
    seen = torch.unique(torch.cat([ids for factor in scatters for ids in factor.ids])).tolist()
    return [(index, index + 1) for index in seen]


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
    """The same sketches by one plain backward pass a row: what the others are checked against."""
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
            f"The sketches of token rows miss {len(missing)} parameters, among them {min(missing)}.",
            hint="Please report this with the model's config.json; its numbers must not be used.",
        )
    return slow


def _add_slowly(sketch: Sketch, policy: MeasuredPolicy, chunk: Chunk, temperature: float, names: Sequence[str]) -> None:
    """Some parameters' gradients by one backward pass a row."""
    alone, following = replace(chunk, rows=tuple(range(len(chunk.rows)))), iter(names)

    def add(rows: torch.Tensor) -> None:
        sketch.add_rows(next(following), 0, chunk.rows, rows)

    token_loop_rows(policy.model, {name: policy.trainable[name] for name in names}, [alone], temperature, add)
