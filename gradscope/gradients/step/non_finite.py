"""Where a forward pass first leaves the finite numbers: which rollout, which token, which module.

Looked for only where a gradient could not be had, one rollout at a time: hooks on every module would slow the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.plan.prepared_step import PreparedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The first number that is none."""

    rollout: int
    """Index of the rollout within the step."""
    group_id: str
    """Its group."""
    sample: int
    """Its index within the group."""
    module: str
    """The first module, in the order in which they ran, with such an output."""
    token: int | None
    """The first token of the sequence, prompt included, at which it has one; None where its output is not by token."""

    def __str__(self) -> str:
        where = "" if self.token is None else f", at token {self.token}"
        return f"the output of {self.module} is not finite in rollout {self.sample} of group {self.group_id}{where}"


def first_non_finite(prepared: PreparedStep) -> NonFinite | None:
    """The first output of a module that is not finite, rollout by rollout in the order of the log.

    Args:
        prepared: The step.

    Returns:
        Where it is; None where the forward passes of all rollouts are finite.
    """
    policy, plan = prepared.policy, prepared.plan
    for index, sequence in enumerate(plan.sequences):
        batch = pad_batch([index], [sequence], policy.device)
        with torch.no_grad(), _watched(policy.model) as seen:
            logprobs = completion_logprobs(policy.model, batch, plan.objective.temperature)[0]
        if seen or not bool(torch.isfinite(logprobs).all()):
            module, token = seen[0] if seen else ("the log-probabilities", None)
            return NonFinite(
                rollout=index, group_id=sequence.group_id, sample=sequence.sample, module=module, token=token
            )
    return None


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[tuple[str, int | None]]]:
    """Modules with an output that is not finite, as they run, each with the first token."""
    seen: list[tuple[str, int | None]] = []

    def look(name: str, output: Any) -> None:
        tensor = output[0] if isinstance(output, (tuple, list)) and output else output
        if not seen and isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            bad = ~torch.isfinite(tensor)
            if bool(bad.any()):
                seen.append((name, _first_token(bad)))

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: look(name, output))
        for name, module in model.named_modules()
        if name and not any(True for _ in module.children())
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _first_token(bad: torch.Tensor) -> int | None:
    """Outputs are [1, S, ...]: the first S with a number that is none."""
    if bad.dim() < 2 or bad.shape[0] != 1:
        return None
    return int(bad[0].flatten(1).any(dim=1).nonzero()[0]) if bad.dim() > 2 else int(bad[0].nonzero()[0])
