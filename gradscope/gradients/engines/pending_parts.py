"""What each parameter has been given so far, batch by batch, until it can be added to the Gram.

Rows of different batches have inner products too. So where several batches or groups are to come, factors wait on
the CPU or on disk until all are in; where nothing more will come, they stay where they are until their parameter is
complete, are added and dropped. What would not fit is left for another round: all rows run again for the parameters
whose rows have not met.

Shapes: N rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from torch import nn

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.spill import KEPT_BYTES, PartStore, free_bytes, stored_bytes
from gradscope.gradients.layers.factors import GradientFactor, Part, Summed, compact


class PendingParts:
    """Factors by parameter.

    Args:
        trainable: The parameters of this round; of others nothing is kept.
        waits: Whether factors wait for those of other batches.
        max_kept_bytes: Memory for what waits; more of it goes to a temporary file.
    """

    def __init__(
        self,
        trainable: Mapping[str, nn.Parameter],
        accumulator: GramAccumulator,
        *,
        waits: bool,
        max_kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.left: dict[str, nn.Parameter] = {}
        """Parameters for the rounds to come."""
        self._trainable, self._accumulator, self._waits = dict(trainable), accumulator, waits
        self._max_kept_bytes = max_kept_bytes
        self._here: dict[str, list[Part]] = defaultdict(list)
        self._store = PartStore(max_kept_bytes)

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._here.clear()
        self._store.__exit__(kind, error, traceback)

    def make_room(self) -> None:
        """Hand memory back before a pass, where much waits already."""
        self._store.make_room()

    def take(self, name: str, rows: Sequence[int], factors: Sequence[GradientFactor]) -> None:
        """Keep what the calls in one batch add to a parameter in some of the step's rows."""
        if not self._waits:
            self._here[name].append((tuple(rows), list(factors)))
        elif name in self._trainable:
            self._store.keep(name, tuple(rows), compact(factors))

    def leave_what_does_not_fit(self, tokens: float, rows: float) -> int:
        """Once the first of several batches is in, leave parameters whose parts of all batches are too much together.

        Of those that stay the gradients came last, from the bottom of the model: the rounds to come go down less far.

        Args:
            tokens: Tokens of all batches over those of the first.
            rows: Their rows likewise; a gradient that is kept whole takes as much for a short row as for a long one.

        Returns:
            How many rounds there are to come, this one among them.
        """
        if not self._waits:
            return 1
        room = self._max_kept_bytes + free_bytes() // 2
        sizes = {}
        for name, factors in reversed([*self._store.factors()]):
            by_row = stored_bytes(factor for factor in factors if isinstance(factor, Summed))
            sizes[name] = rows * by_row + tokens * (stored_bytes(factors) - by_row)
        later = _rounds(sizes, room)[1:]
        for name in (name for names in later for name in names):
            self._store.drop(name)
            self.left[name] = self._trainable.pop(name)
        return 1 + len(later)

    def combine(self, name: str) -> None:
        """Add a parameter that is complete to the Gram, and drop what was kept of it."""
        parts = self._store.take(name, self._accumulator.device) if self._waits else self._here.pop(name)
        self._accumulator.add_parameter(self._trainable[name].shape, self._trainable[name].dtype, parts)

    def combine_all(self, uncovered: Collection[str]) -> None:
        """Add every parameter of which something was kept."""
        for name in self._store.names if self._waits else list(self._here):
            if name not in uncovered:
                self.combine(name)


def _rounds(sizes: Mapping[str, float], room: float) -> list[list[str]]:
    """Parameters in the order given, as many a round as there is room for; one alone where even that is too much."""
    rounds: list[list[str]] = [[]]
    used = 0.0
    for name, size in sizes.items():
        if rounds[-1] and used + size > room:
            rounds.append([])
            used = 0.0
        rounds[-1].append(name)
        used += size
    return rounds
