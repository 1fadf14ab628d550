"""Everything that is written goes through here: whole or not at all, nothing unasked, one writer an output.

A file is written aside and then renamed, so that a reader never sees half of it and ``kill -9`` leaves the old one.
What was being written lies beside its place as ``.NAME.<pid>-<random>.partial``; it belongs to the process that holds
its lock, and the next writer of that name removes it once nobody does. Locks are those of the kernel (``flock``): they
end with their process however it ends, and neither a clock nor a process number that is used again can make one look
alive. Where a file system has none, nothing is refused and nothing removed on their account.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from gradscope.errors import GradscopeError, OutputBusyError, OutputExistsError

_HELD = {errno.EWOULDBLOCK, errno.EACCES}
_FLOCK: Any = import_module("fcntl") if find_spec("fcntl") else None
_OURS: set[tuple[int, int, int]] = set()  # locks that are held: the process that does, device and inode
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags that open neither what a link points to nor wait for the other end of a pipe."""
_LOCK_KEYS = {"process", "host", "since"}
_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")
_PARTIAL = re.compile(r"\.([^/]+)\.[0-9]+(?:-[0-9a-f]{6})?\.partial")
_TORCH_WRITER = re.compile("PytorchStreamWriter|inline_container")


def atomic_write(path: Path, data: bytes | str, *, force: bool = False) -> None:
    """Write a whole file, its folder too, or nothing; text becomes UTF-8.

    Args:
        path: Where it belongs.
        force: Replace what is there.

    Raises:
        OutputExistsError: Something is there and ``force`` is off.
    """
    with naming(path):
        refuse_existing(path, force=force)
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial_file(path) as stream:
            # half a surrogate pair, which a log may hold, has no bytes of its own
            stream.write(data.encode(errors="backslashreplace") if isinstance(data, str) else data)
            stream.flush()
            take_place(Path(stream.name), path, force=force)


def is_own(path: Path) -> bool:
    """Whether a file, folder or link, itself, is the user's own; on some network disks root is another user."""
    owner = path.lstat().st_uid
    if owner == (os.getuid() if hasattr(os, "getuid") else 0):
        return True
    if path.is_symlink():
        return False
    with tempfile.TemporaryFile(dir=path if path.is_dir() else path.parent) as probe:
        return os.fstat(probe.fileno()).st_uid == owner


def open_own(path: str, flags: int) -> int:
    """An ``opener`` for a file that grows in place: what a link leads to is not opened, and no pipe is waited for."""
    return os.open(path, flags | _NO_LINKS, 0o666)


def take_place(aside: Path, path: Path, *, force: bool) -> None:
    """Let a file take its place; what appeared there in the meantime is replaced with ``force`` alone.

    Raises:
        OutputExistsError: Something is there and ``force`` is off.
    """
    if not force:
        try:
            os.link(aside, path, follow_symlinks=False)
            return
        except FileExistsError:
            refuse_existing(path, force=False)
        except (OSError, NotImplementedError):  # a file system without links; whatever else it is, renaming tells
            pass
    aside.replace(path)


def repeatable(tensors: bytes) -> bytes:
    """What ``safetensors.save`` made, with its metadata in order: the library has them in another one each time."""
    end = 8 + int.from_bytes(tensors[:8], "little")
    header = json.loads(tensors[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers behind it are aligned
    return len(text).to_bytes(8, "little") + text + tensors[end:]


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse a place that is taken, before any work.

    Raises:
        OutputExistsError: Something is there and ``force`` is off, or it is a folder.
    """
    if path.is_dir():
        raise OutputExistsError(f"{path} is a folder.", hint="Name a file.")
    if os.path.lexists(path) and not force:
        raise OutputExistsError(f"{path} already exists.", hint="Name another place, or add --force to replace it.")


@contextmanager
def partial_file(path: Path) -> Iterator[IO[bytes]]:
    """An empty file beside its place to be, open; its name is gone at the end unless it was renamed."""
    remove_partials(path)
    aside = _aside(path)
    with aside.open("xb") as stream:
        _lock(stream.fileno())
        try:
            yield stream
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside its place to be, gone with all that is in it at the end."""
    remove_partials(path)
    aside = _aside(path)
    aside.mkdir(parents=True)
    descriptor = os.open(aside, os.O_RDONLY)
    _lock(descriptor)
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that takes its place whole when the block ends well; what is there is replaced. It begins empty."""
    place = path.resolve()
    with partial_folder(place) as aside:
        yield aside
        with partial_folder(place) as old:
            if place.exists():
                place.rename(old / place.name)
            aside.rename(place)


def remove_partials(path: Path) -> None:
    """Remove what writers of this place left behind that were killed."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        found = _PARTIAL.fullmatch(partial.name)
        if found is None or found[1] != path.name:
            continue
        with contextlib.suppress(OSError):  # another writer of the same name may be as fast
            descriptor = os.open(partial, os.O_RDONLY | os.O_NONBLOCK)
            try:
                if _lock(descriptor):
                    shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def one_writer(path: Path) -> Iterator[None]:
    """Be the only one who writes a place, a file or a folder, until the end.

    The lock is a file beside the place, ``.NAME.lock``, that says who holds it since when. A process that holds it
    already is let in again; parts that a killed writer left behind are removed. A file of that name which says
    something else is somebody's: it is neither written nor removed, and no link is followed.

    Args:
        path: The place, which need not exist.

    Raises:
        OutputBusyError: Another process does.
        OutputExistsError: What lies in the place of the lock is none.
    """
    file = lock_path(path)
    with naming(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _held(file)
    try:
        if descriptor is not None:
            remove_partials(path.absolute())
        yield
    finally:
        if descriptor is not None:
            if _is_still(file, descriptor):
                file.unlink(missing_ok=True)
            _OURS.discard(_identity(descriptor))
            os.close(descriptor)


def lock_path(path: Path) -> Path:
    """The lock of a place: a hidden file beside it.

    Raises:
        OutputExistsError: The place is the root of all files.
    """
    absolute = path.absolute()
    if not absolute.name:
        raise OutputExistsError(f"Nothing can be written to {path}.", hint="Name a folder in it.")
    return absolute.with_name(f".{absolute.name}.lock")


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let every failure to write say which file it was about, those of libraries with errors of their own too.

    Raises:
        OSError: What was raised, with the file's name.
        GradscopeError: As it was raised.
    """
    try:
        yield
    except GradscopeError:
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno, error.strerror or os.strerror(error.errno), _whole(error.filename or path)
        ) from error
    except Exception as error:
        found = _of_library(error, path)
        if found is None:
            raise
        raise found from error


def _whole(path: object) -> str:
    """A place as it is named once it is there."""
    return _PARTIAL.sub(r"\1", str(path))


def _of_library(error: Exception, path: Path | str) -> OSError | None:
    """What safetensors and PyTorch tell of a file that could not be written, as what it is."""
    if told := _OS_ERROR.search(str(error)):
        return OSError(int(told[1]), os.strerror(int(told[1])), _whole(path))
    if _TORCH_WRITER.search(str(error)):
        return OSError(errno.EIO, "PyTorch could not write a file to its end", _whole(path))
    return None


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.partial")


def _held(file: Path) -> int | None:
    """The descriptor of the lock, now held by this process; None where it was before."""
    while True:
        try:
            descriptor = os.open(file, os.O_CREAT | os.O_RDWR | _NO_LINKS, 0o666)
        except OSError as error:
            if os.path.islink(file) or (file.exists() and not file.is_file()):
                raise _no_lock(file) from error
            raise
        is_held, owner, status = _lock(descriptor), _owner(descriptor), os.fstat(descriptor)
        if is_held is False:
            is_ours = _identity(descriptor) in _OURS
            os.close(descriptor)
            if is_ours:
                return None
            place = file.with_name(file.name.removeprefix(".").removesuffix(".lock"))
            raise OutputBusyError(
                f"{place} is being written by {_named(owner, file)}.",
                hint="Wait until it is done, or name another place.",
            )
        is_one = stat.S_ISREG(status.st_mode) and (owner.keys() >= _LOCK_KEYS or status.st_size == 0)
        if not is_one or status.st_nlink > 1:
            os.close(descriptor)
            raise _no_lock(file)
        if _is_still(file, descriptor):
            break
        os.close(descriptor)  # its holder removed it between our opening and locking it
    since = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    _OURS.add(_identity(descriptor))
    return descriptor


def _no_lock(file: Path) -> OutputExistsError:
    return OutputExistsError(
        f"{file} is where a lock should be, and is none.", hint="Move it, or name another place to write to."
    )


def _identity(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return os.getpid(), status.st_dev, status.st_ino


def _lock(descriptor: int) -> bool | None:
    """Whether nobody else held the lock of an open file, which this process now does; None where there are no locks."""
    if _FLOCK is None:
        return None
    try:
        _FLOCK.flock(descriptor, _FLOCK.LOCK_EX | _FLOCK.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _is_still(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> dict[str, Any]:
    """What the lock says of its holder; nothing where that is only just about to write it."""
    try:
        found = json.loads(os.read(descriptor, 4096))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _named(owner: dict[str, Any], file: Path) -> str:
    if not owner:
        return "another process"
    with contextlib.suppress(OSError):
        minutes = max(0.0, time.time() - file.stat().st_mtime) / 60
        return f"process {owner.get('process')} on {owner.get('host')}, which began {minutes:.0f} minutes ago"
    return f"process {owner.get('process')} on {owner.get('host')}"
