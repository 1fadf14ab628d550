"""How far a gradient row is from its exact value: the floor below which singular values are arithmetic, not signal.

float32 has a constant, measured (float64 has the same: Hugging Face norms compute in float32 inside); lower precisions
are measured on the rows at hand, by recomputing a few in float32.
Re-running with other padding would understate the error: rounding is deterministic.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from gradscope.gradients.model.backward import backward
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.embedding import token_embedding
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.model.precision import uses_tf32, without_tf32
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.processes.group import num_connected

FLOAT32_ROW_ERROR = 1e-5
"""Bound on |row in float32 - row in float64| / |row|; measured 1e-6 on trained small models, a test holds it."""


def relative_row_error(prepared: PreparedStep, norms: Sequence[float], *, num_rows: int = 2) -> float:
    """Largest relative error of a row that the model's arithmetic explains.

    Args:
        norms: Norm of each row, [N]; the largest are recomputed.
        num_rows: How many rows to recompute in float32.

    Returns:
        The error; multiplied by the matrix's Frobenius norm it is the floor of its singular values.
    """
    policy = prepared.policy
    if policy.dtype in (torch.float32, torch.float64) and not uses_tf32(policy.device):
        return FLOAT32_ROW_ERROR
    largest = sorted(range(len(norms)), key=lambda row: -norms[row])[:num_rows]
    return max(_row_difference(prepared, row) for row in largest)


def _row_difference(prepared: PreparedStep, row: int) -> float:
    """Of one row. It is kept in its own precision alone; its float32 tensors are compared and dropped as they come."""
    coarse: dict[str, torch.Tensor] = {}
    errors, sizes = [], []

    def keep(name: str, grad: torch.Tensor) -> None:
        coarse[name] = grad.detach()

    def compare(name: str, grad: torch.Tensor) -> None:
        errors.append((coarse.pop(name).float() - grad).double().square().sum())
        sizes.append(grad.double().square().sum())

    _backward(prepared, row, keep)
    with _in_float32(prepared.policy) as fine, without_tf32():
        _backward(replace(prepared, policy=fine), row, compare)
    error, size = (float(torch.stack(parts).sum()) if parts else 0.0 for parts in (errors, sizes))
    return (error / size) ** 0.5 if size > 0 else 0.0


def _backward(prepared: PreparedStep, index: int, consume: Callable[[str, torch.Tensor], None]) -> None:
    """The gradient of one row, tensor by tensor."""
    policy, plan, row = prepared.policy, prepared.plan, prepared.plan.rows[index]
    batch = pad_batch([index], [plan.sequences[row.sequence]], policy.device)
    backward(
        policy.model,
        policy.trainable,
        batch,
        plan.objective.temperature,
        lambda _, logprobs: plan.cotangent(row, logprobs),
        consume,
        entropies=plan.has_entropies,
    )


@contextmanager
def _in_float32(policy: MeasuredPolicy) -> Iterator[MeasuredPolicy]:
    """Only parameters change: buffers such as rotary frequencies are float32 already and must stay so.

    Weights that several processes hold parts of keep the dtype of their first pass, so they are loaded again.

    Yields:
        The policy in float32.
    """
    if num_connected() > 1 and policy.in_float32 is not None:
        again = policy.in_float32()
        token_embedding(again.model).padding_idx = token_embedding(policy.model).padding_idx
        yield replace(again, trainable={name: again.trainable[name] for name in policy.trainable})
        return
    kept = {parameter: parameter.data for parameter in policy.model.parameters()}
    try:
        for parameter in kept:
            parameter.data = parameter.data.float()
        yield policy
    finally:
        for parameter, data in kept.items():
            parameter.data = data
