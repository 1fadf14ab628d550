"""Writing files so that a reader never sees half of one: aside first, then renamed; nothing is overwritten unasked."""

from __future__ import annotations

import os
from pathlib import Path

from gradscope.errors import OutputExistsError


def atomic_write(path: Path, data: bytes | str, *, force: bool = False) -> None:
    """Write a whole file, its folder too, or nothing; text becomes UTF-8.

    Raises:
        OutputExistsError: Something is there and ``force`` is off.
    """
    _refuse_existing(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    try:
        aside.write_bytes(data.encode() if isinstance(data, str) else data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _refuse_existing(path: Path, force: bool) -> None:
    if not force and path.exists():
        raise OutputExistsError(f"{path} already exists.", hint="Name another place, or add --force to replace it.")


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
