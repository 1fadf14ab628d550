"""Engine ``stream`` on several processes: each runs its share of the rows, and adds up its piece of every parameter.

Weights lie in parts on all processes, so all of them make the same number of passes; who has fewer batches repeats one
for nothing. (Input, output gradient) pairs wait until all passes are done. Then, parameter by parameter, every process
sends each of the others what its rows add to that one's piece, and all have all rows of their own piece: a part of the
Gram matrix, which adds up over parameters and over their pieces alike. Of an output layer in slices a process's piece
is the ids whose rows of the weight it holds anyway: their output gradients are formed there, and no weight is sent.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.loop import parameter_blocks
from gradscope.gradients.engines.spill import KEPT_BYTES, PartStore
from gradscope.gradients.engines.stream import OnSequence, capture_batch
from gradscope.gradients.exchange.letters import Letter, exchange_letters
from gradscope.gradients.exchange.pieces import bounds_of, cut_shape, piece_of
from gradscope.gradients.exchange.shares import deal_rows
from gradscope.gradients.layers.capture import Capture
from gradscope.gradients.layers.factors import GradientFactor, Part, compact
from gradscope.gradients.model.backward import backward, gradients_on
from gradscope.gradients.model.batches import PaddedBatch, PaddingSide, split_rows
from gradscope.gradients.model.head.sliced import PlainHead
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row
from gradscope.gradients.processes.group import connected_index, from_all, num_connected
from gradscope.gradients.processes.sharding import let_go, own_slice, row_bounds


def exchanged_gram(
    prepared: PreparedStep,
    batch_tokens: int,
    accumulator: GramAccumulator,
    on_sequence: OnSequence,
    *,
    padding_side: PaddingSide = "right",
    max_kept_bytes: int = KEPT_BYTES,
) -> frozenset[str]:
    """Add this process's pieces of all parameters that a layer rule covers.

    Args:
        batch_tokens: Most padded tokens of one process's forward pass.
        accumulator: Gets a part of the Gram matrix; the sum over all processes is the matrix.
        on_sequence: Called for the sequences of this process's rows.
        max_kept_bytes: Memory of one process for what waits; more of it goes to a temporary file.

    Returns:
        Names of the parameters that no rule covers, the same in every process; nothing was added for them.
    """
    policy, plan = prepared.policy, prepared.plan
    batches = own_batches(prepared, batch_tokens, padding_side)
    let_go(policy.model)  # layers are known by the parameters that they have outside of a pass
    capture = Capture(policy.model, policy.trainable)
    with PartStore(max_kept_bytes) as store:
        for batch, counts in batches:

            def take(name: str, factors: list[GradientFactor], batch: PaddedBatch = batch, on: bool = counts) -> None:
                if on:
                    store.keep(name, batch.rows, compact(factors))

            seen = on_sequence if counts else _nobody
            store.make_room()
            with gradients_on(policy.trainable, on=False):
                capture_batch(policy.model, plan, batch, capture, take, seen)
        slow = frozenset(chain.from_iterable(from_all(sorted(capture.uncovered))))
        let_go(policy.model)
        ids = None if capture.head is None else _OwnIds.of(capture.head.at(plan.objective.temperature))
        for name, parameter in policy.trainable.items():
            if name not in slow:
                parts = store.take(name, accumulator.device) if name in store.names else ()
                _add_own_piece(accumulator, parameter, parts, ids if name in capture.sliced else None)
    return slow


def own_batches(
    prepared: PreparedStep, batch_tokens: int, padding_side: PaddingSide = "right"
) -> list[tuple[PaddedBatch, bool]]:
    """This process's batches, as many as every other process has.

    Returns:
        Each batch, and whether it counts: where this process has fewer, the step's shortest row runs for nothing.
    """
    lengths = prepared.plan.lengths
    shares = deal_rows(lengths, num_connected())
    most = max(len(split_rows([lengths[row] for row in share], batch_tokens)) for share in shares)
    own = prepared.batches(shares[connected_index()], batch_tokens, padding_side)
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    idle = [prepared.batch([shortest], padding_side)] * (most - len(own))
    return [*((batch, True) for batch in own), *((batch, False) for batch in idle)]


def add_slowly(prepared: PreparedStep, names: Collection[str], accumulator: GramAccumulator, max_bytes: int) -> None:
    """Add parameters without a layer rule: one ordinary backward pass a row by all processes, each keeping a piece.

    Args:
        names: The parameters.
        max_bytes: Memory that one process may spend on pieces of rows; more parameters take the passes again.
    """
    parameters = {name: prepared.policy.trainable[name] for name in sorted(names)}
    for block in parameter_blocks(parameters, len(prepared.plan.rows), max_bytes * num_connected()):
        pieces = _pieces_of_rows(prepared, block)
        while pieces:
            accumulator.add_rows(pieces.pop(next(iter(pieces))))


def _pieces_of_rows(prepared: PreparedStep, block: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    """This process's piece of every row's gradient by each parameter of a block, [N, columns] each."""
    policy, plan = prepared.policy, prepared.plan
    kept = {name: _room(len(plan.rows), parameter) for name, parameter in block.items()}
    for index, row in enumerate(plan.rows):

        def keep(name: str, grad: torch.Tensor, index: int = index) -> None:
            start, stop = bounds_of(grad.numel(), num_connected())[connected_index()]
            kept[name][index] = grad.detach().flatten()[start:stop]

        def weigh(_: int, outputs: torch.Tensor, row: Row = row) -> torch.Tensor:
            return plan.cotangent(row, outputs)

        batch, temperature = prepared.batch([index]), plan.objective.temperature
        with gradients_on(policy.trainable, on=False), gradients_on(block, on=True):
            backward(policy.model, block, batch, temperature, weigh, keep, entropies=plan.has_entropies)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnIds:
    """An output layer in slices: the ids whose rows of the weight this process has anyway."""

    head: PlainHead
    """The layer of these ids alone."""
    bounds: list[tuple[int, int]]
    """First and last-plus-one id of each process."""

    @classmethod
    def of(cls, head: PlainHead) -> _OwnIds:
        """The ids of a layer whose weight is in parts."""
        weight, bias = head.module.weight.detach(), head.module.bias
        own = head.with_rows(own_slice(weight), None if bias is None else own_slice(bias.detach()))
        return cls(head=own, bounds=row_bounds(weight))


def _add_own_piece(
    accumulator: GramAccumulator, parameter: nn.Parameter, parts: Sequence[Part], ids: _OwnIds | None
) -> None:
    """Exchange what all rows add to one parameter, and add this process's piece of it."""
    shape, side = cut_shape(parameter.shape, [factor for _, factors in parts for factor in factors])
    letters = []
    for start, stop in bounds_of(shape[side], num_connected()) if ids is None else ids.bounds:
        pieces = tuple((rows, [piece_of(factor, side, start, stop) for factor in factors]) for rows, factors in parts)
        size = (*shape[:side], stop - start, *shape[side + 1 :])
        letters.append(Letter(shape=size, parts=pieces))
    came = exchange_letters(letters, accumulator.device, None if ids is None else ids.head)
    everything = [part for letter in came for part in letter.parts]
    (size,) = {letter.shape for letter in came if letter.parts}
    if all(size):
        accumulator.add_parameter(torch.Size(size), parameter.dtype, everything)


def _room(num_rows: int, parameter: nn.Parameter) -> torch.Tensor:
    """Room for this process's piece of all rows, [N, columns]."""
    start, stop = bounds_of(parameter.numel(), num_connected())[connected_index()]
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return torch.zeros(num_rows, stop - start, dtype=dtype, device=parameter.device)


def _nobody(sequence: int, logprobs: torch.Tensor) -> None:
    """Forget the log-probabilities of a pass that ran for nothing."""
