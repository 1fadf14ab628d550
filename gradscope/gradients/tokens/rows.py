"""Rows of single tokens: which of them, which share a forward pass, and sketches of all of a group's.

A sketch is taken in lockstep, chunk by chunk; memory is one chunk's layer and N x k numbers.

Shapes: N token rows, C rows of a chunk, T tokens of a completion, R rollouts of the step, k buckets.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradscope.errors import VerificationError
from gradscope.gradients.layers.factors import GradientFactor, Part, Scatter
from gradscope.gradients.model.batches import TokenSequence, pad_batch
from gradscope.gradients.model.passes import add_gradients, completion_logprobs, gradients_on, row_buffers
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Channel, Row, RowPlan
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.lockstep import lockstep
from gradscope.metrics.gram.spectrum import Array

CHUNK = 32  # tokens that share a forward pass; each pays for the positions up to the chunk's last


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One row: the gradient of the log-probability of one sampled token."""

    sequence: int
    position: int  # its place in the completion, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of one sequence that go down one graph."""

    rows: tuple[int, ...]  # their indices among all rows, [C]
    positions: tuple[int, ...]  # their places in the completion, ascending, [C]
    sequence: int
    prefix: TokenSequence  # the sequence up to the last of them


def _sample_tokens(candidates: Sequence[TokenRow], most: int, seed: int | Sequence[int]) -> tuple[TokenRow, ...]:
    """Tokens drawn without replacement, each equally likely, in their order; all where there are no more.

    Raises:
        ValueError: No token was asked for.

    >>> rows = [TokenRow(sequence=0, position=position) for position in range(5)]
    >>> [row.position for row in _sample_tokens(rows, 3, seed=0)]
    [2, 3, 4]
    """
    if most < 1:
        raise ValueError(f"at least one token is needed, got {most}")
    if len(candidates) <= most:
        return tuple(candidates)
    chosen = np.random.default_rng(seed).choice(len(candidates), size=most, replace=False)
    return tuple(candidates[index] for index in sorted(chosen))


def chunks_of(rows: Sequence[TokenRow], sequences: Sequence[TokenSequence], size: int = CHUNK) -> list[Chunk]:
    """Rows in chunks of at most ``size`` neighbors of one sequence, every row in one chunk."""
    of_sequence: dict[int, list[int]] = defaultdict(list)
    for index in sorted(range(len(rows)), key=lambda index: rows[index].position):
        of_sequence[rows[index].sequence].append(index)
    return [
        _chunk(members[first : first + size], rows, sequence, sequences[sequence])
        for sequence, members in sorted(of_sequence.items())
        for first in range(0, len(members), size)
    ]


def _chunk(members: Sequence[int], rows: Sequence[TokenRow], index: int, sequence: TokenSequence) -> Chunk:
    positions = tuple(rows[index].position for index in members)
    end = positions[-1] + 1
    prefix = replace(sequence, completion_ids=sequence.completion_ids[:end], mask=sequence.mask[:end])
    return Chunk(rows=tuple(members), positions=positions, sequence=index, prefix=prefix)


# Token rows by one ordinary backward pass each: exact for any architecture and kernel, slow.
#
# It serves the parameters that no layer rule covers, and checks a few rows of every Gram matrix of tokens.
def token_loop_rows(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    chunks: Sequence[Chunk],
    temperature: float,
    add: Callable[[torch.Tensor], None],
) -> None:
    """Every row, handed out parameter by parameter, [N, elements] each."""
    num_rows, parameters = sum(len(chunk.rows) for chunk in chunks), list(trainable.values())
    buffers = row_buffers(parameters, num_rows)
    with gradients_on(trainable, on=True):
        for chunk in chunks:
            batch = pad_batch([0], [chunk.prefix], parameters[0].device)
            (logprobs,) = completion_logprobs(model, batch, temperature, torch.float64)
            for row, position in zip(chunk.rows, chunk.positions, strict=True):
                add_gradients(buffers, row, logprobs[position], parameters, is_last=row == chunk.rows[-1])
    while buffers:
        add(buffers.pop(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """The token rows of one group."""

    step: int
    group_id: str
    rows: tuple[TokenRow, ...]  # the tokens, [N]
    score_weights: Array  # the trainer's weight of each token, importance ratio included and advantage not, [N]
    logged_weights: Array | None
    """The whole weight of each token in the reward part of the gradient that the optimizer saw: per-token advantages,
    ratio and clip included, [N]; None where no advantages were logged."""
    num_tokens: int  # tokens of the group that count in the loss; more than N where they were sampled

    @property
    def rollouts(self) -> NDArray[np.intp]:
        """Which rollout of the step each token belongs to, [N]."""
        return np.array([row.sequence for row in self.rows])

    @property
    def positions(self) -> NDArray[np.intp]:
        """Each token's place in its completion, [N]."""
        return np.array([row.position for row in self.rows])


def token_tables(
    prepared: PreparedStep, step: StepGram, *, most: int | None, seed: int, rollouts: Collection[int] | None
) -> Iterator[TokenTable]:
    """The tokens of each group that count in the loss, or a random part of them; nothing of a group without any.

    Args:
        step: The step's Gram matrix, for the log-probabilities.
        most: Tokens of a group; of more, as many are drawn, each equally likely. None: all.
        rollouts: Rollouts of the step whose tokens are wanted; None: all.
    """
    plan = prepared.plan
    score, logged = _weights(plan, step, "score"), None
    if all(advantages is not None for advantages in plan.advantages):
        logged = _weights(plan, step, "logged")
    first = 0
    for number, group in enumerate(prepared.groups):
        members = range(first, first + len(group.rollouts))
        first = members.stop
        candidates = [
            TokenRow(sequence=sequence, position=position)
            for sequence in members
            if rollouts is None or sequence in rollouts
            for position in np.flatnonzero(plan.weights[sequence].numpy()).tolist()
        ]
        if not candidates:
            continue
        rows = _sample_tokens(candidates, most or len(candidates), (seed, step.step, number))
        yield TokenTable(
            step=step.step,
            group_id=group.group_id,
            rows=rows,
            score_weights=np.array([score[row.sequence][row.position] for row in rows]),
            logged_weights=None if logged is None else np.array([logged[row.sequence][row.position] for row in rows]),
            num_tokens=len(candidates),
        )


def _weights(plan: RowPlan, step: StepGram, channel: Channel) -> list[Array]:
    """What multiplies each token's grad log pi in a rollout's row, [R][T]."""
    return [
        plan.cotangent(Row(sequence=sequence, channel=channel), torch.tensor(logprobs)).double().numpy()
        for sequence, logprobs in enumerate(step.logprobs)
    ]


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
