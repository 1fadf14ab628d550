"""An output folder that appears whole or not at all, and in which nothing is overwritten unasked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradscope.errors import OutputExistsError


@contextmanager
def staged_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write into, whose files move to their place once all of them are there.

    With ``force`` files of the same name are replaced and everything else in the folder stays: it may be a home.

    Args:
        folder: Where the files belong.
        force: Write into a folder that is not empty.

    Yields:
        An empty folder beside it, on the same disk; an exception removes it and leaves ``folder`` as it was.

    Raises:
        OutputExistsError: There is a file at that path, or a folder with something in it and ``force`` is off.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputExistsError(f"{folder} is a file.", hint="Name a folder with --output.")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise OutputExistsError(
            f"The folder {folder} is not empty.",
            hint="Name another folder, or add --force to replace files of the same name in it.",
        )
    absolute = folder.absolute()
    absolute.parent.mkdir(parents=True, exist_ok=True)
    aside = absolute.with_name(f".{absolute.name}.{os.getpid()}.partial")
    aside.mkdir()
    try:
        yield aside
        _move_files(aside, absolute)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def unfinished_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A place for finished parts of work that may be interrupted; it goes when the work is done, and only then.

    Args:
        folder: Where the work's files belong.
        force: Throw away what an earlier call left there.

    Yields:
        A hidden folder beside it, which need not exist.
    """
    kept = unfinished_path(folder)
    if force:
        shutil.rmtree(kept, ignore_errors=True)
    yield kept
    shutil.rmtree(kept, ignore_errors=True)


def unfinished_path(folder: Path) -> Path:
    """Where finished parts of a folder's work wait."""
    return folder.absolute().with_name(f".{folder.absolute().name}.unfinished")


def _move_files(aside: Path, folder: Path) -> None:
    for file in sorted(path for path in aside.rglob("*") if path.is_file()):
        target = folder / file.relative_to(aside)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
