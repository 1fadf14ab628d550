"""Engine ``loop``: one sequence at a time, ordinary backward, rows kept; the reference, exact for any architecture.

Shapes: N rows, P parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gradscope.errors import UsageError
from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.model.backward import gradients_on
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.plan.rows import RowPlan

ROW_BYTES = 2**30
"""Memory that ``loop`` may spend on rows; beyond it ``stream`` is chosen."""


def row_bytes(num_rows: int, trainable: Mapping[str, nn.Parameter]) -> int:
    """Bytes that keeping N rows of all parameters takes."""
    return num_rows * sum(p.numel() * _row_dtype(p).itemsize for p in trainable.values())


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
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    plan: RowPlan,
    accumulator: GramAccumulator,
    on_sequence: Callable[[int, torch.Tensor], None],
    *,
    max_bytes: int = ROW_BYTES,
) -> None:
    """Add the Gram matrix of all rows, by one backward pass each.

    Args:
        max_bytes: Memory that rows may take.

    Raises:
        UsageError: The rows do not fit.
    """
    needed = row_bytes(len(plan.rows), trainable)
    if needed > max_bytes:
        raise UsageError(
            f"Keeping {len(plan.rows)} gradient rows takes {needed / 2**30:.1f} GiB; the budget is "
            f"{max_bytes / 2**30:.1f} GiB.",
            hint="Use the engine `stream`, or fewer rollouts.",
        )
    parameters = list(trainable.values())
    kept = [torch.zeros(len(plan.rows), p.numel(), dtype=_row_dtype(p), device=accumulator.device) for p in parameters]
    rows_of: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(plan.rows):
        rows_of[row.sequence].append(index)
    # one forward pass a sequence serves its rows of all channels
    with gradients_on(trainable, on=True):
        for sequence, indices in rows_of.items():
            batch = pad_batch(indices[:1], [plan.sequences[sequence]], accumulator.device)
            (outputs,) = completion_logprobs(model, batch, plan.objective.temperature, entropies=plan.has_entropies)
            detached = outputs.detach()
            for index in indices:
                weights = plan.cotangent(plan.rows[index], detached)
                grads = torch.autograd.grad(
                    outputs, parameters, weights, retain_graph=index != indices[-1], allow_unused=True
                )
                for rows, grad in zip(kept, grads, strict=True):
                    if grad is not None:
                        rows[index] = grad.detach().flatten()
            on_sequence(sequence, plan.logprobs(sequence, detached))
    # each parameter's rows are dropped once their products are added
    while kept:
        accumulator.add_rows(kept.pop(0))


def _row_dtype(parameter: nn.Parameter) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)
