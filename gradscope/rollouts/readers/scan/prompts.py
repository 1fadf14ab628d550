"""The prompts of a log by a hash of their rows, so that only a prompt that is new is looked at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


class Prompts:
    """Ids of prompts, numbered as they are found."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._hashes = np.zeros(0, dtype=np.uint64)
        self._numbers = np.zeros(0, dtype=np.int64)

    def of(self, hashes: NDArray[np.uint64], id_at: Callable[[int], str]) -> NDArray[np.int64]:
        """The numbers of some prompts.

        Args:
            hashes: What tells them apart, 64 bits, [j].
            id_at: The id of the prompt at a place of ``hashes``; asked of each prompt that was not there before.

        Returns:
            Their places in ``ids``, [j].
        """
        present, first, place = np.unique(hashes, return_index=True, return_inverse=True)
        at = np.searchsorted(self._hashes, present)
        is_known = np.zeros(len(present), dtype=np.bool_)
        inside = at < len(self._hashes)
        is_known[inside] = self._hashes[at[inside]] == present[inside]
        new = np.flatnonzero(~is_known)
        added = np.arange(len(self.ids), len(self.ids) + len(new))
        self.ids += [id_at(row) for row in first[new].tolist()]
        self._hashes = np.insert(self._hashes, at[new], present[new])
        self._numbers = np.insert(self._numbers, at[new], added)
        return np.asarray(self._numbers[np.searchsorted(self._hashes, present)][place], dtype=np.int64)
