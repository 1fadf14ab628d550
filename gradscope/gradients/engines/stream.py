"""Engine ``stream``: one forward and backward per batch with weight gradients off; memory independent of P.

One batch: a layer's per-row gradients are formed in slices, added to the Gram and dropped as soon as its last output
gradient arrives. Several batches: (input, output gradient) pairs wait on the CPU, unpadded, until all batches are in
(beyond a budget of memory, on disk); then layers are combined one by one, so rows of different batches meet. What the
disk has no room for takes another round, in which all batches run again.

Shapes: N rows, P parameters.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, cast

import torch
from msgspec import Struct
from torch import nn

from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.capture import Capture, Sink
from gradscope.gradients.layers.factors import GradientFactor, Part, Summed, changed, compact, moved
from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.budget import PENDING_BYTES
from gradscope.gradients.model.passes import Past, backpropagate, gradients_on
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import RowPlan
from gradscope.machine import trim_heap
from gradscope.writing import naming

# Parts of several batches of ``stream`` until their rows meet: in memory up to a budget, beyond it in a file on disk.
#
# The file has no name: the system removes it when it is closed, also after an error, Ctrl-C or a kill. It holds bare
# numbers; where they are and what they were stays in memory.


class _StoredTensor(Struct, frozen=True, kw_only=True):
    """A tensor in the file."""

    offset: int  # its first byte
    shape: torch.Size
    dtype: torch.dtype


class PartStore(ExitStack):
    """Factors by parameter, on the CPU or on disk, until it is closed.

    Args:
        max_bytes: Memory for them; later parts go to a temporary file.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._left = max_bytes
        self._parts: dict[str, list[Part]] = defaultdict(list)
        self._file: BinaryIO | None = None
        self.callback(trim_heap)  # once the rest is gone
        self.callback(self._parts.clear)

    @property
    def names(self) -> list[str]:
        """The parameters that have stored parts."""
        return list(self._parts)

    def keep(self, name: str, rows: tuple[int, ...], factors: Sequence[GradientFactor]) -> None:
        """Store the contribution of the calls in one batch to a parameter."""
        self._parts[name].append((rows, [self._stored(factor) for factor in factors]))

    def trim_memory(self) -> None:
        """Return freed memory to the system, where pending parts fragment it too much for the next pass."""
        if self._file is not None:
            trim_heap()

    def take(self, name: str, device: torch.device) -> list[Part]:
        """Return the stored parts of a parameter, one per batch, and forget them."""
        return [
            (rows, [moved(changed(factor, self._read), device) for factor in factors])
            for rows, factors in self._parts.pop(name)
        ]

    def factors(self) -> Iterator[tuple[str, list[GradientFactor]]]:
        """Each parameter with its factors of all batches so far; of parts on disk only their addresses."""
        for name, parts in self._parts.items():
            yield name, [factor for _, factors in parts for factor in factors]

    def drop(self, name: str) -> None:
        """Forget the stored parts of a parameter; their space on disk stays allocated."""
        del self._parts[name]

    def _stored(self, factor: GradientFactor) -> GradientFactor:
        size = _stored_bytes([factor])
        if size <= self._left:
            self._left -= size
            return moved(factor, torch.device("cpu"))
        return cast(GradientFactor, changed(factor, self._write))

    def _write(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._file is None:
            opened = tempfile.TemporaryFile()  # noqa: SIM115 - the stack closes it
            self._file = cast(BinaryIO, self.enter_context(opened))
        with naming(tempfile.gettempdir()):
            offset = self._file.seek(0, 2)
            self._file.write(memoryview(_bytes(value.cpu().contiguous())))
        return _StoredTensor(offset=offset, shape=value.shape, dtype=value.dtype)

    def _read(self, value: Any) -> Any:
        if not isinstance(value, _StoredTensor):
            return value
        assert self._file is not None, "a place is in a file"
        tensor = torch.empty(value.shape, dtype=value.dtype)
        self._file.seek(value.offset)
        self._file.readinto(memoryview(_bytes(tensor)))  # type: ignore[attr-defined]
        return tensor


def free_bytes() -> int:
    """Free disk space where the temporary file is, or would be."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def _stored_bytes(factors: Iterable[GradientFactor]) -> int:
    """Bytes that factors take, in memory or on disk."""
    parts = (part for factor in factors for part in _parts(factor))
    return sum(part.shape.numel() * part.dtype.itemsize for part in parts)


def _bytes(tensor: torch.Tensor) -> Any:
    """The memory of a tensor on the CPU, in any dtype."""
    return tensor.flatten().view(torch.uint8).numpy()


def _parts(value: Any) -> list[torch.Tensor | _StoredTensor]:
    """All tensors of a factor, wherever they are."""
    parts: list[torch.Tensor | _StoredTensor] = []
    changed(value, lambda part: parts.append(part) if isinstance(part, torch.Tensor | _StoredTensor) else None)
    return parts


# The parts of each parameter so far, batch by batch, until it can be added to the Gram.
#
# Rows of different batches have inner products too. So where several batches or groups are to come, factors wait on the
# CPU or on disk until all are in; where nothing more will come, they stay where they are until their parameter is
# complete, are added and dropped. Parameters that would not fit are left for another round: all rows run again for the
# parameters whose rows have not met.
class PendingParts(ExitStack):
    """Factors by parameter, until it is closed.

    Args:
        trainable: The parameters of this round; parts of others are dropped.
        waits: Whether factors wait for those of other batches.
        max_pending_bytes: Memory for pending parts; the rest goes to a temporary file.
    """

    def __init__(
        self,
        trainable: Mapping[str, nn.Parameter],
        accumulator: GramAccumulator,
        *,
        waits: bool,
        max_pending_bytes: int = PENDING_BYTES,
    ) -> None:
        super().__init__()
        self.left: dict[str, nn.Parameter] = {}  # parameters for the rounds to come
        self._trainable, self._accumulator, self._waits = dict(trainable), accumulator, waits
        self._max_pending_bytes = max_pending_bytes
        self._in_memory: dict[str, list[Part]] = defaultdict(list)
        self._store = self.enter_context(PartStore(max_pending_bytes))
        self.callback(self._in_memory.clear)

    def trim_memory(self) -> None:
        """Return memory to the system before a pass, where many parts are pending."""
        self._store.trim_memory()

    def take(self, name: str, rows: Sequence[int], factors: Sequence[GradientFactor]) -> None:
        """Store the contribution of the calls in one batch to a parameter, for these rows of the step."""
        if not self._waits:
            self._in_memory[name].append((tuple(rows), list(factors)))
        elif name in self._trainable:
            self._store.keep(name, tuple(rows), compact(factors))

    def defer_oversized(self, tokens: float, rows: float) -> int:
        """Once the first of several batches is in, leave parameters whose parts of all batches are too much together.

        Of those that stay the gradients came last, from the bottom of the model: the rounds to come go down less far.
        Returns how many rounds there are to come, this one among them.

        Args:
            tokens: Tokens of all batches over those of the first.
            rows: Their rows likewise; a gradient that is stored in full takes as much for a short row as for a long
                one.
        """
        if not self._waits:
            return 1
        room = self._max_pending_bytes + free_bytes() // 2
        rounds, used = list[list[str]]([[]]), 0.0
        for name, factors in reversed([*self._store.factors()]):
            by_row = _stored_bytes(factor for factor in factors if isinstance(factor, Summed))
            size = rows * by_row + tokens * (_stored_bytes(factors) - by_row)
            if rounds[-1] and used + size > room:  # a single one may be too much by itself
                rounds.append([])
                used = 0.0
            rounds[-1].append(name)
            used += size
        for name in (name for names in rounds[1:] for name in names):
            self._store.drop(name)
            self.left[name] = self._trainable.pop(name)
        return len(rounds)

    def combine(self, name: str) -> None:
        """Add a parameter that is complete to the Gram, and drop its parts."""
        parts = self._store.take(name, self._accumulator.device) if self._waits else self._in_memory.pop(name)
        self._accumulator.add_parameter(self._trainable[name].shape, self._trainable[name].dtype, parts)

    def combine_all(self, uncovered: Collection[str]) -> None:
        """Add every parameter that has stored parts."""
        for name in self._store.names if self._waits else list(self._in_memory):
            if name not in uncovered:
                self.combine(name)


OnSequence = Callable[[int, torch.Tensor], None]
"""Called with a sequence's index and the log-probabilities of its completion, [T]."""
OnRounds = Callable[[int], None]
"""Called once the first batch of a round is in, with the number of rounds to come, this one among them."""


def stream_gram(
    prepared: PreparedStep,
    batches: Sequence[PaddedBatch],
    accumulator: GramAccumulator,
    on_sequence: OnSequence,
    on_rounds: OnRounds = lambda _: None,
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers. Returns the names of the others.

    ``on_sequence`` is called in every round, ``on_rounds`` with the number of rounds. Parts that wait for other batches
    take the budget's memory; the rest goes to a temporary file, of at most half of the free disk space a round. Where
    the budget says so, decoder layers run again in the backward pass instead of keeping their activations.
    """
    policy, slow = prepared.policy, set[str]()
    remaining, waits, pending_bytes = policy.trainable, len(batches) > 1, prepared.budget.pending_bytes
    while remaining:
        capture = Capture(policy.model, remaining, recompute=prepared.budget.recompute)
        with PendingParts(remaining, accumulator, waits=waits, max_pending_bytes=pending_bytes) as pending:
            for number, batch in enumerate(batches):

                def take(name: str, factors: list[GradientFactor], rows: tuple[int, ...] = batch.rows) -> None:
                    pending.take(name, rows, factors)
                    if not waits:
                        pending.combine(name)

                pending.trim_memory()
                with gradients_on(policy.trainable, on=False):
                    capture_batch(prepared, batch, capture, take, on_sequence)
                if number == 0:
                    shares = share_of_first([batch.rows for batch in batches], prepared.plan)
                    on_rounds(pending.defer_oversized(*shares))
            pending.combine_all(capture.uncovered)
        slow |= capture.uncovered
        remaining = {name: part for name, part in pending.left.items() if name not in slow}
    return frozenset(slow)


def share_of_first(batches: Sequence[Sequence[int]], plan: RowPlan) -> tuple[float, float]:
    """Tokens, and rows, of all batches over those of the first; a batch is the indices of its rows."""
    lengths = [sum(plan.lengths[row] for row in rows) for rows in batches]
    return sum(lengths) / lengths[0], sum(map(len, batches)) / len(batches[0])


def capture_batch(
    prepared: PreparedStep,
    batch: PaddedBatch,
    capture: Capture,
    sink: Sink,
    on_sequence: OnSequence,
    past: Past | None = None,
) -> None:
    """One forward and backward pass of a batch, handed out parameter by parameter; weight gradients must be off.

    ``past`` are keys and values from before the batch; None where it holds complete sequences.
    """
    plan = prepared.plan
    rows = [plan.rows[index] for index in batch.rows]
    with capture.hooks(), capture.batch(batch, sink):
        outputs = prepared.outputs(batch, past=past, watch=capture.watch)
        weights = [plan.cotangent(row, output.detach()) for row, output in zip(rows, outputs, strict=True)]
        if any(row.requires_grad for row in outputs):  # nothing does where no layer has a rule
            backpropagate(outputs, weights)
    for row, output in zip(rows, outputs, strict=True):
        if row.channel == "score":
            on_sequence(row.sequence, plan.logprobs(row.sequence, output.detach()))
