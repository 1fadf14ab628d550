"""The engine's self-check: w'Kw must be the squared norm of one ordinary backward pass over the same weighted rows.

A rule that is wrong or missing changes K and not the ordinary gradient. Prototypes were silently 18 % off on one
architecture and 0.8 % on another until their rules were right; a dropped norm costs 2e-4, a dropped tied term 1e-3.
No two weights are alike, so an error that moves gradient from one row to another does not cancel, as it would under
1'K1. The rows run in a batch that no engine forms, so a model whose rows depend on their neighbors is noticed too.

Shapes: N rows of the step, B rows of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.engine_options import Verify
from gradscope.gradients.layers.capture import recomputed, share_nothing
from gradscope.gradients.layers.rules import waits_for_tokens
from gradscope.gradients.layers.trace import decoder_layers
from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.calls import removed_later, uses_tf32
from gradscope.gradients.model.passes import completion_logprobs, sum_of_squares
from gradscope.gradients.model.policy import MeasuredPolicy, token_embedding
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.processes import num_connected
from gradscope.machine import trim_heap

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest relative difference of squared norms by dtype. float32's is ten times below the smallest bug seen (a dropped
norm, 2e-4); those of bfloat16 and float16 are 6 and 10 times their rounding unit, below which no bug could be seen."""
_TF32_TOLERANCE = 1e-2  # TF32 has float16's 10 bits of mantissa


class Verification(Struct, frozen=True, kw_only=True):
    """The result of a self-check that passed; one that fails is an error."""

    error: float
    """Largest relative difference of w'Kw and the squared norm of the ordinary gradient of so weighted rows."""
    tolerance: float  # the largest difference that passes
    num_batches: int
    """Batches that were checked. With all of them goes a pair of rows of two batches where none holds the largest."""
    num_batches_total: int
    dtype: str  # the arithmetic of both passes

    def describe(self) -> dict[str, float | str | bool]:
        """Its fields and ``passed``, for the JSON document."""
        return {"passed": True, **asdict(self)}


def tolerance(dtype: torch.dtype, *, tf32: bool = False) -> float:
    """The largest relative difference of two squared norms that arithmetic explains."""
    return _TF32_TOLERANCE if tf32 and dtype == torch.float32 else _TOLERANCE[dtype]


def tolerance_of(policy: MeasuredPolicy) -> float:
    """The same of a policy's arithmetic, by PyTorch's settings of this moment."""
    return tolerance(policy.dtype, tf32=uses_tf32(policy.device))


def row_tolerance_of(policy: MeasuredPolicy) -> float:
    """The same of one row of a step or one token's.

    It has fewer digits than a sum of many: where pi is near 1, most of it cancels. On an H200 the squared norms of
    rollouts in float32 were up to 2.8e-5 from those of batches of another size, and 2.0e-5 from float64.
    """
    return 5 * tolerance_of(policy)


def require_agreement(claim: str, error: float, limit: float) -> None:
    """Refuse numbers that two ways of computing them do not agree on.

    The claim says what disagrees with what, a sentence without its end.

    Raises:
        VerificationError: The difference is larger, or no number.
    """
    if not error <= limit:
        raise VerificationError(f"{claim}: relative difference {error:.2e}, at most {limit:.0e} is arithmetic.")


def verify_gram(
    prepared: PreparedStep, gram: NDArray[np.float64], batches: Sequence[PaddedBatch], verify: Verify
) -> Verification:
    """Check a Gram matrix [N, N] against an ordinary backward pass of two rows that fit a batch, or of all batches too.

    Raises:
        VerificationError: A difference is larger than arithmetic explains, or nothing has a gradient.
        InputError: The cause is the model: its rows depend on others or on padding, or all tokens are equally likely.
    """
    policy, plan = prepared.policy, prepared.plan
    limit = tolerance_of(policy)
    dtype = str(policy.dtype).removeprefix("torch.")
    if not gram.any() and waits_for_tokens(policy.model):
        return Verification(error=0.0, tolerance=limit, num_batches=0, num_batches_total=len(batches), dtype=dtype)
    if not gram.any() and any(bool(weights.any()) for weights in plan.weights):
        _require_different_tokens(prepared, batches[0])
        names = list(policy.trainable)
        raise VerificationError(
            f"No gradient reaches any of the {len(names)} trainable parameters, {names[0]} the first: the forward pass "
            "does not use them."
        )
    # the two largest rows that fit a batch together, else the largest of the first: small ones may be rounding.
    # They are of two rollouts where there are such: a rollout next to itself shows no model that mixes rows.
    largest = max(batch.input_ids.numel() for batch in batches)
    fitting = [row for row, length in enumerate(prepared.plan.lengths) if 2 * length <= largest]
    ranked = sorted(fitting if len(fitting) > 1 else batches[0].rows, key=lambda row: -float(gram[row, row]))
    other_sequence = [row for row in ranked if plan.rows[row].sequence != plan.rows[ranked[0]].sequence]
    pair = (ranked[0], *(other_sequence or ranked[1:])[:1])
    checked = [pair] if verify == "first" else [batch.rows for batch in batches]
    if not any(set(pair) <= set(rows) for rows in checked):
        checked.append(pair)
    errors = []
    for batch in map(prepared.check_batch, checked):
        errors.append(_error(prepared, gram, batch))
        if not errors[-1] <= limit:
            _require_independent_rows(prepared, batch, limit)
        require_agreement("The gradient engine disagrees with an ordinary backward pass of a batch", errors[-1], limit)
    return Verification(
        error=max(errors),
        tolerance=limit,
        num_batches=1 if verify == "first" else len(batches),
        num_batches_total=len(batches),
        dtype=dtype,
    )


def _error(prepared: PreparedStep, gram: NDArray[np.float64], batch: PaddedBatch) -> float:
    """Relative difference of w'Kw over the batch's rows."""
    policy, plan, rows = prepared.policy, prepared.plan, list(batch.rows)
    block = gram[np.ix_(rows, rows)]
    # No two weights are alike. Each has the sign by which its row adds to the ones before it: the sum of rows that
    # cancel is small compared with their rounding, and the length of a row at right angles to the sum of all would not
    # count. Sizes run from 1 for the smallest row to 1/2 for the largest, so that both count.
    weights = np.zeros(len(block))
    for row, size in zip(np.argsort(np.diag(block)), np.geomspace(1.0, 0.5, len(block)), strict=True):
        weights[row] = size if block[row] @ weights >= 0 else -size

    def weigh(position: int, logprobs: torch.Tensor) -> torch.Tensor:
        return float(weights[position]) * plan.cotangent(plan.rows[rows[position]], logprobs)

    # a pass with weight gradients holds these and the activations
    is_large = prepared.budget.recompute or 2 * batch.input_ids.numel() > prepared.budget.tokens
    layers = decoder_layers(policy.model) if num_connected() == 1 else ()
    recomputation = recomputed(layers if is_large and share_nothing(layers) else (), lambda layer: layer())
    total = torch.zeros((), dtype=torch.float64, device=batch.input_ids.device)

    def add(_: str, grad: torch.Tensor) -> None:
        total.add_(sum_of_squares(grad))

    def trim_before(module: torch.nn.Module, inputs: object, output: object) -> None:
        # make room for the gradient of the token embedding: return the memory that the layers freed
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(lambda _: trim_heap())  # type: ignore[no-untyped-call]

    with recomputation, removed_later([token_embedding(policy.model).register_forward_hook(trim_before)]):
        prepared.backward(batch, weigh, add)
    value, expected = float(weights @ block @ weights), float(total)
    scale = max(expected, abs(value))
    return abs(value - expected) / scale if scale > 0 else 0.0


def _require_different_tokens(prepared: PreparedStep, batch: PaddedBatch) -> None:
    """Blame the weights where they are the cause: a norm turns absurdly large ones into zeros, and all logits agree."""
    with torch.no_grad():
        logprobs = completion_logprobs(prepared.policy.model, batch, prepared.plan.objective.temperature)
    values = torch.cat([row.flatten() for row in logprobs])
    if bool((values == values[0]).all()) and len(values) > 1:
        raise InputError(
            "The model gives every token the same probability, so that nothing has a gradient.",
            hint="Look for weights that are damaged: copy the checkpoint again.",
            cause="weights_unreadable",
        )


def _require_independent_rows(prepared: PreparedStep, batch: PaddedBatch, limit: float) -> None:
    """Blame the model where it is the cause: a rollout's gradient may depend on other rows and on padding."""
    plan, rest, squares = prepared.plan, dict[str, Any](), 0.0

    def add(part: PaddedBatch, consume: Callable[[str, torch.Tensor], None]) -> None:
        prepared.backward(part, lambda i, logprobs: plan.cotangent(plan.rows[part.rows[i]], logprobs), consume)

    def take_away(name: str, grad: torch.Tensor) -> None:
        nonlocal squares
        rest[name] = rest.get(name, 0.0) - grad
        squares += float(sum_of_squares(grad))

    add(batch, rest.__setitem__)
    for row in batch.rows:
        add(prepared.batch([row]), take_away)
    change = math.sqrt(sum(float(sum_of_squares(grad)) for grad in rest.values()) / squares) if squares else 0.0
    if change > limit:
        raise InputError(
            f"A rollout's gradient changes by {change:.0e} with the rows and the padding beside it, so it has none of "
            "its own.",
            hint="The model or its adapter mixes the rows of a batch; only gradients of whole batches are defined.",
            cause="model_unsupported",
        )
