"""Writing files so that a reader never sees half of one: aside first, then renamed; nothing is overwritten unasked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradscope.errors import OutputExistsError


def atomic_write(path: Path, data: bytes | str, *, force: bool = False) -> None:
    """Write a whole file or nothing.

    Args:
        path: Where to; its folder is made.
        data: Bytes, or text that becomes UTF-8.
        force: Replace what is there.

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


@contextmanager
def atomic_folder(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Fill a folder that appears under its name only once it is complete.

    Args:
        path: Where to; the folder above is made.
        force: Replace what is there. The old content stays in place until the new one is complete.

    Yields:
        An empty folder beside ``path`` to write into; an exception removes it.

    Raises:
        OutputExistsError: Something is there and ``force`` is off.
    """
    _refuse_existing(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    _remove(aside)
    aside.mkdir()
    try:
        yield aside
        _remove(path)
        aside.rename(path)
    finally:
        _remove(aside)


def _refuse_existing(path: Path, force: bool) -> None:
    if not force and path.exists():
        raise OutputExistsError(f"{path} already exists.", hint="Name another place, or add --force to replace it.")


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
