"""What a folder does not tell of how a model was trained, to be tried against the norm that the trainer logged.

Whether the padding token's embedding got a gradient depends on when the padding token was written into the model's
configuration; which tensors were frozen stands nowhere, but a frozen one is the same in every checkpoint. Either
changes the norm of the gradient by far more than rounding, so at most one way of training fits what was logged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from gradscope.gradients.model.embedding import padding_row, token_embedding
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.processes.group import holds_everywhere
from gradscope.gradients.processes.sharding import own_slice
from gradscope.gradients.trained.norms import tensor_squares


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One way in which a model may have been trained."""

    padding_row: int | None
    """The token whose embedding got no gradient from being read; None: every token's did."""
    frozen: frozenset[str] = frozenset()
    """Parameters that were not trained."""

    @classmethod
    def of(cls, policy: MeasuredPolicy) -> Assumption:
        """What the folder itself says."""
        return cls(padding_row=padding_row(policy.model))

    def holds_for(self, policy: MeasuredPolicy) -> MeasuredPolicy:
        """The policy under this assumption. The model is shared: only the latest assumption is in force."""
        if policy.kind == "full":
            token_embedding(policy.model).padding_idx = self.padding_row
        for name, parameter in policy.trainable.items():
            parameter.requires_grad_(name not in self.frozen)
        return replace(policy, trainable={n: p for n, p in policy.trainable.items() if n not in self.frozen})

    def describe(self, start: Assumption) -> Iterator[str]:
        """What it says beyond what the folder says, which is ``start``, in sentences."""
        if self.padding_row != start.padding_row:
            had = "a gradient" if self.padding_row is None else "no gradient"
            token = start.padding_row if self.padding_row is None else self.padding_row
            yield (
                f"The embedding of the padding token {token} had {had}: the folder does not tell, and only so is the "
                "logged grad_norm met."
            )
        if self.frozen:
            names = sorted(self.frozen)
            more = f" and {len(names) - 1} more parameters were" if len(names) > 1 else " was"
            yield f"{names[0]}{more} frozen: the same in two checkpoints, and only so is the logged grad_norm met."


def other_assumptions(prepared: PreparedStep, frozen: frozenset[str], start: Assumption) -> list[Assumption]:
    """The other ways in which a step may have been trained, fewest changes first.

    Args:
        prepared: The step, with the whole policy.
        frozen: Parameters that may have been frozen.
        start: What has been tried.

    Returns:
        Assumptions under which the gradient is another one.
    """
    rows = dict.fromkeys([start.padding_row, *_padding_rows(prepared)])
    sets = dict.fromkeys([frozenset[str](), frozen])
    every = [Assumption(padding_row=row, frozen=left_out) for left_out in sets for row in rows]
    return [assumption for assumption in every if assumption != start]


def norm_under(prepared: PreparedStep, assumptions: Sequence[Assumption]) -> Iterator[tuple[Assumption, float]]:
    """The norm of a step's whole gradient under each of some assumptions; one backward pass a padding row tells all.

    Yields:
        Assumption and norm.
    """
    for row in dict.fromkeys(assumption.padding_row for assumption in assumptions):
        policy = Assumption(padding_row=row).holds_for(prepared.policy)
        squares = tensor_squares(replace(prepared, policy=policy))
        for assumption in assumptions:
            if assumption.padding_row == row:
                kept = (square for name, square in squares.items() if name not in assumption.frozen)
                yield assumption, math.sqrt(sum(kept))


def unchanged(policy: MeasuredPolicy, other: MeasuredPolicy) -> frozenset[str]:
    """Trainable parameters that are the same in two checkpoints to the last bit; none where all are."""
    same = [
        name
        for name, tensor in policy.trainable.items()
        if name in other.trainable and _are_equal(tensor, other.trainable[name])
    ]
    return frozenset() if len(same) == len(policy.trainable) else frozenset(same)


def _are_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two parameters are the same, in every process where each has its part of them."""
    return holds_everywhere(torch.equal(own_slice(tensor), own_slice(other)))


def _padding_rows(prepared: PreparedStep) -> Sequence[int | None]:
    """Tokens whose embedding may have got no gradient, where that makes a difference to the step."""
    sequences, rows = prepared.plan.sequences, prepared.policy.padding_rows
    read = {token for s in sequences for token in (*s.prompt_ids, *s.completion_ids)[:-1]}
    return rows if any(row in read for row in rows) else ()
