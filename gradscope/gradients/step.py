"""One step's Gram matrix: the entry point of every diagnostic that needs gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import nn

from gradscope.errors import UsageError, VerificationError
from gradscope.gradients.batches import Batch, PaddingSide, default_batch_tokens
from gradscope.gradients.gram import GramAccumulator
from gradscope.gradients.loop import ROW_BYTES, loop_gram, row_bytes
from gradscope.gradients.noise import relative_row_error
from gradscope.gradients.objective import Objective
from gradscope.gradients.policy import Policy
from gradscope.gradients.prepare import batch_rows, plan_step
from gradscope.gradients.result import Array, StepGram
from gradscope.gradients.rows import RowPlan
from gradscope.gradients.stream import stream_gram
from gradscope.gradients.verify import verify_gram
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.types import Rollout, RolloutGroup

__all__ = ["Engine", "StepGram", "Verify", "measure_step"]

Engine = Literal["auto", "loop", "stream"]
Verify = Literal["first", "all"]


def measure_step(
    policy: Policy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    *,
    engine: Engine = "auto",
    verify: Verify = "first",
    batch_tokens: int | None = None,
    progress: ProgressCallback | None = None,
    padding_side: PaddingSide = "right",
    max_row_bytes: int = ROW_BYTES,
) -> StepGram:
    """The Gram matrix of one step's gradient rows, checked against an ordinary backward pass.

    Args:
        policy: The weights that the step's update started from.
        groups: The step's rollouts.
        objective: The trainer's loss.
        engine: ``loop``, ``stream``, or ``auto``: ``loop`` while all rows fit ``max_row_bytes``.
        verify: Check the first batch, or all.
        batch_tokens: Most padded tokens of a forward pass of ``stream`` and of the self-check.
        progress: Called as sequences are done.
        padding_side: Where batches are padded; results do not depend on it.
        max_row_bytes: Memory that ``loop`` may spend on rows.

    Returns:
        The step's Gram matrix.
    """
    batch_tokens = batch_tokens or default_batch_tokens(policy.vocab_size)
    plan = plan_step(policy, groups, objective, batch_tokens)
    batches = batch_rows(policy, plan, range(len(plan.rows)), batch_tokens, padding_side)
    work = _Work(policy, plan, batches, progress or no_progress)
    chosen = _choose(engine, policy, len(plan.rows), max_row_bytes)
    slow = work.loop(max_row_bytes) if chosen == "loop" else work.stream(max_row_bytes)
    coverage, gram = work.coverage(), work.gram()
    checked = verify_gram(policy, plan, gram, batches if verify == "all" else batches[:1], len(batches))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return StepGram(
        step=groups[0].step,
        gram=gram,
        rows=plan.rows,
        group_ids=tuple(rollout.group_id for rollout in rollouts),
        samples=tuple(rollout.sample for rollout in rollouts),
        rewards=np.array([math.nan if r.reward is None else r.reward for r in rollouts]),
        advantages=_advantages(rollouts),
        logprobs=tuple(work.logprobs[i] for i in range(len(rollouts))),
        num_inferred_ids=sum(sequence.inferred for sequence in plan.sequences),
        engine=chosen,
        dtype=str(policy.dtype).removeprefix("torch."),
        device=str(policy.device),
        num_parameters=policy.num_parameters,
        coverage=coverage,
        slow_parameters=tuple(sorted(slow)),
        verification=checked,
        relative_row_error=relative_row_error(policy, plan, np.sqrt(np.clip(np.diag(gram), 0, None)).tolist()),
        notes=(*policy.notes, *_notes(plan, slow)),
    )


class _Work:
    """One step's computation: the accumulator, and each sequence's log-probabilities as they come."""

    def __init__(self, policy: Policy, plan: RowPlan, batches: Sequence[Batch], progress: ProgressCallback) -> None:
        self._policy, self._plan, self._batches, self._progress = policy, plan, batches, progress
        self._accumulator = GramAccumulator(len(plan.rows), policy.device)
        self.logprobs: dict[int, Array] = {}

    def loop(self, max_bytes: int) -> frozenset[str]:
        policy = self._policy
        loop_gram(policy.model, policy.trainable, self._plan, self._accumulator, self._done, max_bytes=max_bytes)
        return frozenset()

    def stream(self, max_bytes: int) -> frozenset[str]:
        policy = self._policy
        slow = stream_gram(policy.model, policy.trainable, self._plan, self._batches, self._accumulator, self._done)
        for block in _blocks({name: policy.trainable[name] for name in sorted(slow)}, len(self._plan.rows), max_bytes):
            loop_gram(policy.model, block, self._plan, self._accumulator, self._done, max_bytes=max_bytes)
        return slow

    def coverage(self) -> float:
        """Share of the trainable parameters that were added; anything but 1.0 is an error."""
        share = self._accumulator.num_parameters / self._policy.num_parameters
        if share != 1.0:
            raise VerificationError(
                f"The Gram matrix covers {share:.4%} of the trainable parameters.",
                hint="Please report this with the model's config.json; its numbers must not be used.",
            )
        return share

    def gram(self) -> Array:
        whole = self._accumulator.gram.cpu().numpy()
        return np.asarray((whole + whole.T) / 2)

    def _done(self, sequence: int, logprobs: torch.Tensor) -> None:
        self.logprobs[sequence] = logprobs.double().cpu().numpy()
        self._progress(len(self.logprobs), len(self._plan.sequences), "rollouts")


def _choose(engine: Engine, policy: Policy, num_rows: int, max_row_bytes: int) -> Literal["loop", "stream"]:
    if engine not in ("auto", "loop", "stream"):
        raise UsageError(f"There is no engine {engine!r}.", hint="Use auto, loop or stream.")
    if engine != "auto":
        return engine
    return "loop" if row_bytes(num_rows, policy.trainable) <= max_row_bytes else "stream"


def _blocks(parameters: Mapping[str, nn.Parameter], num_rows: int, max_bytes: int) -> Iterator[dict[str, nn.Parameter]]:
    """Parameters a few at a time, so that their rows fit.

    Yields:
        Blocks of parameters, one alone where even that does not fit.
    """
    block: dict[str, nn.Parameter] = {}
    for name, parameter in parameters.items():
        if block and row_bytes(num_rows, {**block, name: parameter}) > max_bytes:
            yield block
            block = {}
        block[name] = parameter
    if block:
        yield block


def _advantages(rollouts: Sequence[Rollout]) -> Array | None:
    logged = [rollout.advantage for rollout in rollouts if rollout.advantage is not None]
    return np.array(logged, dtype=np.float64) if len(logged) == len(rollouts) else None


def _notes(plan: RowPlan, slow: frozenset[str]) -> list[str]:
    notes = []
    inferred = sum(sequence.inferred for sequence in plan.sequences)
    if inferred:
        notes.append(f"{inferred} of {len(plan.sequences)} rollouts were re-tokenized from text; ids may differ.")
    if plan.objective.assumed:
        notes.append(f"Not known and taken at TRL's default: {', '.join(plan.objective.assumed)}.")
    if plan.objective.importance_ratio:
        notes.append(
            "Score vectors carry the importance ratio; the clip depends on the advantage's sign and enters "
            "only the logged gradient."
        )
    if slow:
        notes.append(
            f"{len(slow)} parameters have no layer rule and took one backward pass a row: {sorted(slow)[0]}"
            f"{', ...' if len(slow) > 1 else ''}."
        )
    return notes
