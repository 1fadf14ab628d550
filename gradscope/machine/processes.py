"""Which of several processes this one is, as `torchrun` and `accelerate launch` tell it, and whether it speaks.

Of several processes one prints and writes: the main one. Where a run ends in an error, the first that met it tells why,
and the others end with the same exit code and without a word.
"""

from __future__ import annotations

import os

_told: list[bool] = []  # whether this process is the one that tells how the run ended; empty until that is settled


def num_processes() -> int:
    """How many processes the launcher started, at least 1."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """Which of them this one is, from 0 on; 0 is the main one."""
    return int(os.environ.get("RANK", "0")) if num_processes() > 1 else 0


def settle_speaker(*, speaks: bool) -> None:
    """Say whether this process tells how the run ended."""
    _told[:] = [speaks]


def tell_own_error() -> None:
    """Let this process speak of an error that it alone may have met, unless another's turn was settled."""
    if not _told:
        settle_speaker(speaks=True)


def speaks() -> bool:
    """Whether what happens is this process's to tell; the main one's, where nothing else was settled."""
    return _told[0] if _told else process_index() == 0
