"""An output folder that appears whole or not at all, and in which nothing is overwritten unasked."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradscope.errors import OutputExistsError
from gradscope.writing import atomic_write, naming, one_writer, partial_folder, take_place

_STEP = re.compile(r"\.?step_[0-9]+\.safetensors(\.[0-9]+-[0-9a-f]{6}\.partial)?")


@contextmanager
def staged_folder(folder: Path, *, force: bool, inputs: Sequence[str] = ()) -> Iterator[Path]:
    """A folder to write into, whose files move to their place once all of them are there.

    With ``force`` files of the same name are replaced and everything else in the folder stays: it may be a home. What
    the command read is never replaced.

    Args:
        folder: Where the files belong.
        force: Write into a folder that is not empty.
        inputs: The files that were read, known at the latest when the block ends.

    Yields:
        An empty folder beside it, on the same disk; an exception removes it and leaves ``folder`` as it was.

    Raises:
        OutputExistsError: There is a file at that path, a folder with something in it and ``force`` is off, or one of
            the inputs in the place of a file.
        OutputBusyError: Another process writes there.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputExistsError(f"{folder} is a file.", hint="Name a folder with --output.")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise OutputExistsError(
            f"The folder {folder} is not empty.",
            hint="Name another folder, or add --force to replace files of the same name in it.",
        )
    with one_writer(folder), naming(folder), partial_folder(folder.absolute()) as aside:
        yield aside
        _move_files(aside, folder.absolute(), inputs, force=force)


@contextmanager
def unfinished_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A place for finished parts of work that may be interrupted; it goes when the work is done, and only then.

    Args:
        folder: Where the work's files belong.
        force: Throw away what an earlier call left there.

    Yields:
        A hidden folder beside it, which need not exist.

    Raises:
        OutputExistsError: What is there is no such folder: a link, or one with other files.
    """
    kept = unfinished_path(folder)
    if os.path.lexists(kept) and (kept.is_symlink() or not kept.is_dir() or not all(map(_is_step, kept.iterdir()))):
        raise OutputExistsError(
            f"{kept} is where finished steps are kept, and holds something else.",
            hint="Move it, or name another folder with --output.",
        )
    if force:
        shutil.rmtree(kept, ignore_errors=True)
    yield kept
    shutil.rmtree(kept, ignore_errors=True)


def unfinished_path(folder: Path) -> Path:
    """Where finished parts of a folder's work wait."""
    return folder.absolute().with_name(f".{folder.absolute().name}.unfinished")


def _is_step(path: Path) -> bool:
    return _STEP.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def refuse_input(path: Path, inputs: Sequence[str]) -> None:
    """Refuse to replace what the command reads, ``--force`` or not.

    Raises:
        OutputExistsError: The path is one of the inputs, by whatever name.
    """
    if path.exists() and any(Path(one).exists() and path.samefile(one) for one in inputs):
        raise OutputExistsError(
            f"{path} is what this command reads; nothing replaces that.", hint="Name another place."
        )


def _move_files(aside: Path, folder: Path, inputs: Sequence[str], *, force: bool) -> None:
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    for file in files:
        refuse_input(folder / file.relative_to(aside), inputs)
    for file in files:
        target = folder / file.relative_to(aside)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            take_place(file, target, force=force)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            atomic_write(target, file.read_bytes(), force=force)  # the folder is a disk of its own
