"""Sketches of all token rows of a group: lockstep, chunk by chunk; memory is one chunk's layer and N x k numbers.

Shapes: N token rows, C rows of a chunk, k buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gradscope.errors import VerificationError
from gradscope.gradients.layers.factors import Part
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.tokens.count_sketch import Sketch
from gradscope.gradients.tokens.lockstep import lockstep
from gradscope.gradients.tokens.loop import token_loop_rows
from gradscope.gradients.tokens.rows import Chunk


def sketch_rows(
    policy: MeasuredPolicy, chunks: Sequence[Chunk], temperature: float, num_buckets: int, seed: int
) -> tuple[Sketch, frozenset[str]]:
    """Sketch token rows, parameters without a layer rule by one backward pass a row.

    Returns:
        The sketches, and the names of parameters that went the slow way.
    """
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
