"""What several batches of ``stream`` keep until their rows meet: in memory up to a budget, beyond it in a file on disk.

The file has no name: the system removes it when it is closed, also after an error, Ctrl-C or a kill. It holds bare
numbers; where they are and what they were stays in memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

import torch

from gradscope.gradients.layers.factors import GradientFactor, Part
from gradscope.machine.memory import trim_heap
from gradscope.writing import naming

KEPT_BYTES = 2**28
"""Memory for what waits, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A tensor in the file."""

    offset: int
    """Its first byte."""
    shape: torch.Size
    """Its shape."""
    dtype: torch.dtype
    """Its dtype."""


class PartStore:
    """Factors by parameter, on the CPU or on disk.

    Args:
        max_bytes: Memory for them; what comes later goes to a temporary file.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._left = max_bytes
        self._parts: dict[str, list[Part]] = defaultdict(list)
        self._open = ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._parts.clear()
        self._open.close()
        trim_heap()

    @property
    def names(self) -> list[str]:
        """The parameters of which something is kept."""
        return list(self._parts)

    def keep(self, name: str, rows: tuple[int, ...], factors: Sequence[GradientFactor]) -> None:
        """Keep what the calls in one batch add to a parameter."""
        self._parts[name].append((rows, [self._stored(factor) for factor in factors]))

    def make_room(self) -> None:
        """Hand back what earlier passes freed, where so much waits among it that the next one would not fit there."""
        if self._file is not None:
            trim_heap()

    def take(self, name: str, device: torch.device) -> list[Part]:
        """Hand out what was kept of a parameter, one part per batch, and forget it."""
        return [
            (rows, [_mapped(factor, self._read).to(device) for factor in factors])
            for rows, factors in self._parts.pop(name)
        ]

    def factors(self) -> Iterator[tuple[str, list[GradientFactor]]]:
        """Each parameter with its factors of all batches so far; of what is on disk only the places."""
        for name, parts in self._parts.items():
            yield name, [factor for _, factors in parts for factor in factors]

    def drop(self, name: str) -> None:
        """Forget what was kept of a parameter; the room that it has on disk stays taken."""
        del self._parts[name]

    def _stored(self, factor: GradientFactor) -> GradientFactor:
        size = stored_bytes([factor])
        if size <= self._left:
            self._left -= size
            return factor.to(torch.device("cpu"))
        return cast(GradientFactor, _mapped(factor, self._write))

    def _write(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._file is None:
            opened = tempfile.TemporaryFile()  # noqa: SIM115 - the stack closes it
            self._file = cast(BinaryIO, self._open.enter_context(opened))
        with naming(tempfile.gettempdir()):
            offset = self._file.seek(0, 2)
            self._file.write(memoryview(_bytes(value.cpu().contiguous())))
        return _Place(offset=offset, shape=value.shape, dtype=value.dtype)

    def _read(self, value: Any) -> Any:
        if not isinstance(value, _Place):
            return value
        assert self._file is not None, "a place is in a file"
        tensor = torch.empty(value.shape, dtype=value.dtype)
        self._file.seek(value.offset)
        self._file.readinto(memoryview(_bytes(tensor)))  # type: ignore[attr-defined]
        return tensor


def free_bytes() -> int:
    """What is free where the temporary file is, or would be."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def stored_bytes(factors: Iterable[GradientFactor]) -> int:
    """What factors take, here or on disk."""
    kept = (part for factor in factors for part in _parts(factor))
    return sum(part.shape.numel() * part.dtype.itemsize for part in kept)


def _bytes(tensor: torch.Tensor) -> Any:
    """The memory of a tensor on the CPU, in any dtype."""
    return tensor.flatten().view(torch.uint8).numpy()


def _parts(value: Any) -> list[torch.Tensor | _Place]:
    """All tensors of a factor, wherever they are."""
    found: list[torch.Tensor | _Place] = []
    _mapped(value, lambda part: found.append(part) if isinstance(part, torch.Tensor | _Place) else None)
    return found


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A factor with everything that it holds changed, in records and tuples too."""
    if isinstance(value, tuple):
        return tuple(_mapped(part, change) for part in value)
    if is_dataclass(value) and not isinstance(value, (type, _Place)):
        return replace(value, **{field.name: _mapped(getattr(value, field.name), change) for field in fields(value)})
    return change(value)
