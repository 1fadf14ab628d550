"""Sums of a step's token gradients, each under weights of its own, and how they lie to each other.

A correction for another sampler, a mask on tokens, a turn: each is the same gradients of tokens under other weights. So
each is one more backward pass, and all questions about them are arithmetic on the Gram matrix of the sums, kept by
group so that groups can be left out.

Shapes: N tokens that count, R rollouts of the step, V weightings, J groups, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.loop import ROW_BYTES, parameter_blocks, row_bytes
from gradscope.gradients.engines.stream import stream_gram
from gradscope.gradients.model.backward import gradients_on
from gradscope.gradients.model.batches import pad_batch, split_rows
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row
from gradscope.gradients.processes.sharding import require_one_process
from gradscope.gradients.tokens.sums.counted_tokens import CountedTokens
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress


def measure_token_sums(
    prepared: PreparedStep,
    tokens: CountedTokens,
    weights: Array,
    of_entropy: NDArray[np.bool_],
    *,
    max_bytes: int = ROW_BYTES,
    progress: ProgressCallback = no_progress,
) -> Array:
    """Inner products of sum_t w_vt grad log pi(token t) over the tokens of a group, for every weighting and group.

    Args:
        weights: What multiplies each token's gradient, one row a weighting, [V, N].
        of_entropy: Which weightings weigh grad of the entropies where tokens were sampled instead, [V].
        max_bytes: Memory for the sums by all parameters. Where they take more, layers are taken one by one, and what
            no layer rule covers goes in blocks of parameters.

    Returns:
        The products, [V, J, V, J].
    """
    require_one_process("Sums of tokens are")
    outputs = _outputs(tokens, weights, of_entropy)
    num_groups, device = tokens.num_groups, prepared.policy.device
    num_rows, trainable, budget = len(weights) * num_groups, prepared.policy.trainable, prepared.budget
    lengths = prepared.plan.lengths[: len(tokens.lengths)]
    by_layer, entropies = row_bytes(num_rows, trainable) > max_bytes, bool(of_entropy.any())

    def attempt(batch_tokens: int) -> Array:
        rows = _rows(outputs, tokens)
        total = GramAccumulator(num_rows, device, places=[place for place, _ in rows])
        left = trainable
        if by_layer:
            slow = _by_layer(prepared, [row for _, row in rows], batch_tokens, total, entropies=entropies)
            left = {name: trainable[name] for name in sorted(slow)}
        blocks = list(parameter_blocks(left, num_rows, max_bytes))
        for done, block in enumerate(blocks):
            _by_group(prepared, tokens, outputs, block, batch_tokens, total, entropies=entropies)
            progress(done + 1, len(blocks), "blocks of parameters")
        return np.asarray(total.gram.cpu().numpy())

    gram = budget.fit(lengths, attempt)
    return gram.reshape(len(weights), num_groups, len(weights), num_groups)


Outputs = list[list[torch.Tensor]]
"""What each weighting weighs the outputs of each sequence by, [V][R][T], or [V][R][2 T] with entropies."""


def _outputs(tokens: CountedTokens, weights: Array, of_entropy: NDArray[np.bool_]) -> Outputs:
    ends = np.cumsum(tokens.lengths)
    starts, whole, halves = ends - tokens.lengths, int(ends[-1]), 1 + bool(of_entropy.any())
    at, made = starts[tokens.rollouts] + tokens.positions, []
    for row, is_of_entropy in zip(weights, of_entropy, strict=True):
        spread = np.zeros((halves, whole))
        spread[int(is_of_entropy), at] = row
        made.append([torch.from_numpy(part.flatten()) for part in np.split(spread, ends[:-1], axis=1)])
    return made


def _rows(outputs: Outputs, tokens: CountedTokens) -> list[tuple[int, Row]]:
    """Every sequence under every weighting that has a token of it, and the sum that it counts to."""
    group_of = dict(zip(tokens.rollouts.tolist(), tokens.groups.tolist(), strict=True))
    return [
        (number * tokens.num_groups + group_of[sequence], Row(sequence=sequence, channel="logged", given=given))
        for number, of_sequence in enumerate(outputs)
        for sequence, given in enumerate(of_sequence)
        if given.any()
    ]


def _by_layer(
    prepared: PreparedStep, rows: Sequence[Row], batch_tokens: int, total: GramAccumulator, *, entropies: bool
) -> frozenset[str]:
    """Add all parameters that a layer rule covers; the names of the others."""
    policy, plan = prepared.policy, prepared.plan
    beside = plan.weights if entropies else None  # says that rows weigh entropies; theirs are given
    weighed = replace(prepared, plan=replace(plan, rows=tuple(rows), entropy_weights=beside))
    return stream_gram(
        policy.model,
        policy.trainable,
        weighed.plan,
        weighed.batches(range(len(rows)), batch_tokens),
        total,
        lambda _, __: None,
        recompute=prepared.budget.recompute,
    )


def _by_group(
    prepared: PreparedStep,
    tokens: CountedTokens,
    outputs: Outputs,
    block: Mapping[str, nn.Parameter],
    batch_tokens: int,
    total: GramAccumulator,
    *,
    entropies: bool,
) -> None:
    """Add some parameters: a forward pass a group serves one backward pass a weighting."""
    policy, plan, parameters = prepared.policy, prepared.plan, list(block.values())
    kept = [
        torch.zeros(total.num_rows, p.numel(), dtype=torch.promote_types(p.dtype, torch.float32), device=total.device)
        for p in parameters
    ]
    with gradients_on(block, on=True):
        for group in range(tokens.num_groups):
            members = np.unique(tokens.rollouts[tokens.groups == group]).tolist()
            for part in split_rows([plan.sequences[member].length for member in members], batch_tokens):
                chosen = [members[index] for index in part]
                batch = pad_batch(chosen, [plan.sequences[member] for member in chosen], policy.device)
                found = torch.cat(
                    completion_logprobs(policy.model, batch, plan.objective.temperature, entropies=entropies)
                )
                given = [torch.cat([row[member] for member in chosen]) for row in outputs]
                live = [number for number, row in enumerate(given) if row.any()]
                for number in live:
                    grads = torch.autograd.grad(
                        found,
                        parameters,
                        given[number].to(found),
                        retain_graph=number != live[-1],
                        allow_unused=True,
                    )
                    for rows, grad in zip(kept, grads, strict=True):
                        if grad is not None:
                            rows[number * tokens.num_groups + group] += grad.detach().flatten()
    while kept:
        total.add_rows(kept.pop(0))
