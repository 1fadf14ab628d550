"""The norm of one step's whole gradient, by one forward and backward pass over its rollouts.

A norm alone needs no inner products of rows, which cost several passes. Where it is not the logged one, the Gram matrix
and what else may explain it are computed after all.

Shapes: R rollouts, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from gradscope.gradients.model.backward import backpropagate, gradients_on
from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.model.precision import uses_tf32
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row
from gradscope.gradients.trained.norms import TrainedNorms
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNorm:
    """What a replay needs to know of a step's gradient."""

    norm: float | None
    """Of the gradient that the optimizer saw; None where no advantages were logged."""
    floor: float
    """Up to where a norm of this step is rounding."""
    frac_kl: float | None
    """Norm of the KL part over the norm of the whole; None without a KL term, and where the whole is zero."""
    logprobs: tuple[Array, ...]
    """The policy's log-probability of each completion token, [R][T]."""
    num_inferred_ids: int
    """Rollouts whose token ids were re-tokenized from text."""
    described: Mapping[str, object]
    """How it was computed, for the JSON document."""
    as_clipped: float | None = None
    """The same as PyTorch's clipping adds it up, in the dtype of the gradients: float32 is 2e-5 off on a table of 30 M
    numbers. None where it is not known."""
    trained: TrainedNorms | None = None
    """Norms by the trainer's own arithmetic; None where this one holds all of it."""
    other_texts: tuple[int, ...] = ()
    """Rows whose text is another one than their ids say."""

    @property
    def num_rollouts(self) -> int:
        """R."""
        return len(self.logprobs)


@dataclass(slots=True)
class _Pass:
    """What one pass over all batches gives."""

    squares: float = 0.0
    as_clipped: float = 0.0
    kl_squares: float = 0.0
    logprobs: dict[int, torch.Tensor] = field(default_factory=dict)


def measure_norm(prepared: PreparedStep, progress: ProgressCallback = no_progress) -> StepNorm:
    """The norm of a step's gradient under its logged advantages, and of the KL part within it.

    Args:
        prepared: The step; every rollout has an advantage.

    Returns:
        The norm, in the arithmetic of the policy.
    """
    policy, plan, budget = prepared.policy, prepared.plan, prepared.budget
    rows = range(len(plan.sequences))

    def attempt(tokens: int) -> _Pass:
        return _one_pass(prepared, prepared.batches(rows, tokens), progress)

    done = budget.fit([plan.lengths[row] for row in rows], attempt)
    norm, lengths = done.squares**0.5, np.cumsum([len(done.logprobs[row]) for row in rows])
    logprobs = torch.cat([done.logprobs[row] for row in rows]).cpu().numpy()
    dtype = str(policy.dtype).removeprefix("torch.")
    tf32 = uses_tf32(policy.device)
    return StepNorm(
        norm=norm,
        as_clipped=done.as_clipped,
        floor=0.0,
        frac_kl=done.kl_squares**0.5 / norm if plan.index("kl") and norm > 0 else None,
        logprobs=tuple(np.split(logprobs, lengths[:-1])),
        num_inferred_ids=sum(sequence.inferred for sequence in plan.sequences),
        described={
            "engine": "backward",
            "dtype": dtype,
            "precision": "high" if dtype in ("float32", "float64") and not tf32 else "reduced",
            "tf32": tf32,
            "device": str(policy.device),
            "batch_tokens": budget.tokens,
            "num_parameters": policy.num_parameters,
            "coverage": 1.0,
        },
    )


def _one_pass(prepared: PreparedStep, batches: Sequence[PaddedBatch], progress: ProgressCallback) -> _Pass:
    policy, plan, done = prepared.policy, prepared.plan, _Pass()
    trainable, has_kl = policy.trainable, bool(plan.index("kl"))
    kl_parts: dict[str, torch.Tensor] = {}
    with _own_gradients(trainable):
        for batch in batches:
            outputs = completion_logprobs(policy.model, batch, plan.objective.temperature, entropies=plan.has_entropies)
            sequences = [plan.rows[row].sequence for row in batch.rows]
            each = [(sequence, row.detach()) for sequence, row in zip(sequences, outputs, strict=True)]
            if has_kl:
                kept = {name: parameter.grad for name, parameter in trainable.items()}
                for name, parameter in trainable.items():
                    parameter.grad = kl_parts.get(name)
                weights = [plan.cotangent(Row(sequence=sequence, channel="kl"), row) for sequence, row in each]
                backpropagate(outputs, weights, retain_graph=True)
                for name, parameter in trainable.items():
                    if parameter.grad is not None:
                        kl_parts[name] = parameter.grad
                    parameter.grad = kept[name]
            backpropagate(outputs, [plan.gradient(sequence, row) for sequence, row in each])
            done.logprobs.update({sequence: plan.logprobs(sequence, row).double() for sequence, row in each})
            progress(len(done.logprobs), len(plan.sequences), "rollouts")
        gradients = [parameter.grad for parameter in trainable.values() if parameter.grad is not None]
        done.squares, done.as_clipped = _squares(gradients), float(torch.nn.utils.get_total_norm(gradients))
    done.kl_squares = _squares(kl_parts.values())
    return done


@contextmanager
def _own_gradients(trainable: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """Gradients on, none there; what was there comes back."""
    before = {name: parameter.grad for name, parameter in trainable.items()}
    try:
        for parameter in trainable.values():
            parameter.grad = None
        with gradients_on(trainable, on=True):
            yield
    finally:
        for name, parameter in trainable.items():
            parameter.grad = before[name]


def _squares(gradients: Iterable[torch.Tensor]) -> float:
    return sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in gradients)
