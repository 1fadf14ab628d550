"""What each parameter has been given so far, batch by batch, until it can be added to the Gram.

Rows of different batches have inner products too. So where several batches or groups are to come, factors wait on
the CPU or on disk until all are in; where nothing more will come, they stay where they are until their parameter is
complete, are added and dropped.

Shapes: N rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from torch import nn

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.spill import KEPT_BYTES, PartStore
from gradscope.gradients.layers.factors import GradientFactor, Part


class PendingParts:
    """Factors by parameter.

    Args:
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
        self._trainable, self._accumulator, self._waits = trainable, accumulator, waits
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

    def take(self, name: str, rows: Sequence[int], factors: Sequence[GradientFactor]) -> None:
        """Keep what the calls in one batch add to a parameter in some of the step's rows."""
        if self._waits:
            self._store.keep(name, tuple(rows), factors)
        else:
            self._here[name].append((tuple(rows), list(factors)))

    def combine(self, name: str) -> None:
        """Add a parameter that is complete to the Gram, and drop what was kept of it."""
        parts = self._store.take(name, self._accumulator.device) if self._waits else self._here.pop(name)
        self._accumulator.add_parameter(self._trainable[name].shape, self._trainable[name].dtype, parts)

    def combine_all(self, uncovered: Collection[str]) -> None:
        """Add every parameter of which something was kept."""
        for name in self._store.names if self._waits else list(self._here):
            if name not in uncovered:
                self.combine(name)
