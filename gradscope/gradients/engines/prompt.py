"""Engine ``prompt``: the rollouts of a group share their prompt, so it runs, and its activations are held, once.

All of the prompt but its last token is the prefix. It runs once; the completions, each behind the prompt's last token,
which predicts their first, run on its keys and values, expanded to all rows. Their backward pass ends in cotangents of
those keys and values, one set a row, and these go down the one graph of the prefix. What a row adds to a parameter is
the sum of both parts. The forward pass is shared; the backward pass and the weight gradients stay per row, for their
cotangents differ.

Shapes: R rows of a group, N rows of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradscope.errors import UsageError
from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.pending_parts import PendingParts
from gradscope.gradients.engines.prefix import Prefix
from gradscope.gradients.engines.shared_prompts import PromptGroup, group_by_prompt
from gradscope.gradients.engines.spill import KEPT_BYTES
from gradscope.gradients.engines.stream import OnRounds, OnSequence, capture_batch, share_of_first
from gradscope.gradients.layers.capture import Capture
from gradscope.gradients.layers.factors import GradientFactor
from gradscope.gradients.layers.trace import Tracer
from gradscope.gradients.model.backward import gradients_on
from gradscope.gradients.model.batches import PaddedBatch, pad_batch, split_rows
from gradscope.gradients.plan.rows import RowPlan

PREFIX_SHARE = 4
"""As many expanded tokens of the prefix, of which only keys and values exist, count as one token of a batch."""
CPU_TOKENS = 1024
"""Most tokens of a batch of completions on a CPU, where larger ones hold more memory and are not faster."""


def prompt_gram(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    plan: RowPlan,
    batch_tokens: int,
    accumulator: GramAccumulator,
    on_sequence: OnSequence,
    *,
    max_kept_bytes: int = KEPT_BYTES,
    recompute: bool = False,
    on_rounds: OnRounds = lambda _: None,
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers.

    Args:
        on_sequence: Called in every round.
        max_kept_bytes: Memory for what waits for other groups; more of it goes to a temporary file, of which each
            round takes at most half of what is free.
        recompute: Whether decoder layers run again in the backward pass instead of keeping their activations.
        on_rounds: Told in each round how many are to come.

    Returns:
        Names of the parameters that no rule covers; nothing was added for them.

    Raises:
        UsageError: The model's output depends on the padding before a prompt.
    """
    if any(sequence.frame for sequence in plan.sequences):
        raise UsageError(
            "The engine `prompt` runs each prompt once, and this model sees the padding before it.",
            hint="Use --engine stream.",
        )
    capture = Capture(model, trainable, recompute=recompute)
    tracer = Tracer(model, trainable, plan.objective.temperature)
    groups = group_by_prompt(plan)
    left, waits = trainable, len(groups) > 1
    while left:
        with PendingParts(left, accumulator, waits=waits, max_kept_bytes=max_kept_bytes) as pending:
            for number, group in enumerate(groups):
                batches = completion_batches(plan, group, batch_tokens, accumulator.device)
                with gradients_on(trainable, on=False):
                    prefix = _run_group(model, plan, group, batches, capture, tracer, pending, on_sequence)
                rows = [row for batch in batches for row in batch.rows]
                for complete, added in prefix.descend() if prefix else ():
                    for name, factors in added.items():
                        pending.take(name, rows, factors)
                    for name in complete - capture.uncovered if not waits else ():
                        pending.combine(name)
                if number == 0:
                    shares = share_of_first([each.rows for each in groups], plan)
                    on_rounds(pending.leave_what_does_not_fit(*shares))
            pending.combine_all(capture.uncovered)
        left = {name: part for name, part in pending.left.items() if name not in capture.uncovered}
    return frozenset(capture.uncovered)


def _run_group(
    model: Any,
    plan: RowPlan,
    group: PromptGroup,
    batches: Sequence[PaddedBatch],
    capture: Capture,
    tracer: Tracer,
    pending: PendingParts,
    on_sequence: OnSequence,
) -> Prefix | None:
    """The prefix of a group, with the cotangents that its completions left on it; None where it has none."""
    device = batches[0].input_ids.device
    prefix = Prefix(model, tracer, group.prefix_ids, device) if group.prefix_ids else None
    capture.uncovered.update(tracer.layers.uncovered)
    for batch in batches:

        def take(name: str, factors: list[GradientFactor], rows: tuple[int, ...] = batch.rows) -> None:
            pending.take(name, rows, factors)

        pending.make_room()
        past = prefix.expanded(len(batch.rows)) if prefix else None
        capture_batch(model, plan, batch, capture, take, on_sequence, past)
    return prefix


def completion_batches(plan: RowPlan, group: PromptGroup, batch_tokens: int, device: torch.device) -> list[PaddedBatch]:
    """The completions of a group, each behind the last token of its prompt, every row in one batch."""
    behind = [replace(plan.sequences[plan.rows[row].sequence], prompt_ids=group.prompt_ids[-1:]) for row in group.rows]
    expanded = len(group.prefix_ids) // PREFIX_SHARE
    most = min(batch_tokens, CPU_TOKENS) if device.type == "cpu" else batch_tokens
    return [
        pad_batch([group.rows[i] for i in part], [behind[i] for i in part], device)
        for part in split_rows([sequence.length + expanded for sequence in behind], most)
    ]
