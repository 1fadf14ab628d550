"""All writing of files: completely or not at all, nothing unasked, one writer an output.

A file is written aside and then renamed, so that a reader never sees half of it and ``kill -9`` leaves the old one.
An unfinished file is next to its destination as ``.NAME.<pid>-<random>.partial``; it belongs to the process that holds
its lock, and the next writer of that name removes it once no process does. Locks are those of the kernel (``flock``):
they end with their process however it ends, and neither a clock nor a process number that is used again can make one
look alive. Where a file system has none, nothing is refused and nothing removed on their account.
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
"""Flags with which opening follows no link and waits for no pipe."""
_LOCK_KEYS = {"process", "host", "since"}
_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")
_PARTIAL = re.compile(r"\.([^/]+)\.[0-9]+(?:-[0-9a-f]{6})?\.partial")
_TORCH_WRITER = re.compile("PytorchStreamWriter|inline_container")


def atomic_write(path: Path, data: bytes | str, *, force: bool = False) -> None:
    """Write a complete file, and its folder, or nothing; text becomes UTF-8.

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
            move_into_place(Path(stream.name), path, force=force)


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
    """An ``opener`` for a file that grows: it follows no link and waits for no pipe."""
    return os.open(path, flags | _NO_LINKS, 0o666)


def move_into_place(aside: Path, path: Path, *, force: bool) -> None:
    """Move a file to its destination; a file that appeared there in the meantime is replaced with ``force`` alone.

    Raises:
        OutputExistsError: Something is there and ``force`` is off.
    """
    if not force:
        try:
            os.link(aside, path, follow_symlinks=False)
            return
        except FileExistsError:
            refuse_existing(path, force=False)
        except (OSError, NotImplementedError):  # a file system without links; other errors recur in the rename
            pass
    aside.replace(path)


def repeatable(tensors: bytes) -> bytes:
    """The bytes of ``safetensors.save`` with its metadata sorted: the library's order varies."""
    end = 8 + int.from_bytes(tensors[:8], "little")
    header = json.loads(tensors[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers behind it are aligned
    return len(text).to_bytes(8, "little") + text + tensors[end:]


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse an existing path, before any work.

    Raises:
        OutputExistsError: Something is there and ``force`` is off, or it is a folder.
    """
    if path.is_dir():
        raise OutputExistsError(f"{path} is a folder.", hint="Name a file.")
    if os.path.lexists(path) and not force:
        raise OutputExistsError(f"{path} already exists.", hint="Write to another path, or add --force to replace it.")


@contextmanager
def partial_file(path: Path) -> Iterator[IO[bytes]]:
    """An empty open file next to its destination; it is removed at the end unless it was renamed."""
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
    """An empty folder next to its destination, removed with its content at the end."""
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
    """An empty folder that replaces its destination when the block ends without an error."""
    target = path.resolve()
    with partial_folder(target) as aside:
        yield aside
        with partial_folder(target) as old:
            if target.exists():
                target.rename(old / target.name)
            aside.rename(target)


def remove_partials(path: Path) -> None:
    """Remove unfinished files of killed writers of this path."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        match = _PARTIAL.fullmatch(partial.name)
        if match is None or match[1] != path.name:
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
    """Be the only writer of a path, a file or a folder that need not exist, until the end.

    The lock is a file next to the path, ``.NAME.lock``, with its holder and time. A process that holds it
    already is let in again; parts that a killed writer left behind are removed. A file of that name which says
    something else is a user's: it is neither written nor removed, and no link is followed.

    Raises:
        OutputBusyError: Another process does.
        OutputExistsError: The path of the lock is another file.
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
            if _is_same_file(file, descriptor):
                file.unlink(missing_ok=True)
            _OURS.discard(_identity(descriptor))
            os.close(descriptor)


def lock_path(path: Path) -> Path:
    """The lock of a path: a hidden file next to it.

    Raises:
        OutputExistsError: The path is the root of all files.
    """
    absolute = path.absolute()
    if not absolute.name:
        raise OutputExistsError(f"Nothing can be written to {path}.", hint="Name a folder in it.")
    return absolute.with_name(f".{absolute.name}.lock")


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let every failure to write say which file it was about, those of libraries with errors of their own too.

    Raises:
        OSError: The raised error, with the file's name.
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
            error.errno, error.strerror or os.strerror(error.errno), _final_name(error.filename or path)
        ) from error
    except Exception as error:
        os_error = _of_library(error, path)
        if os_error is None:
            raise
        raise os_error from error


def _final_name(path: object) -> str:
    """The final name of a path that may be unfinished."""
    return _PARTIAL.sub(r"\1", str(path))


def _of_library(error: Exception, path: Path | str) -> OSError | None:
    """Errors of safetensors and PyTorch over a file that could not be written, as OSError."""
    if match := _OS_ERROR.search(str(error)):
        return OSError(int(match[1]), os.strerror(int(match[1])), _final_name(path))
    if _TORCH_WRITER.search(str(error)):
        return OSError(errno.EIO, "PyTorch could not write a file to its end", _final_name(path))
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
            target = file.with_name(file.name.removeprefix(".").removesuffix(".lock"))
            raise OutputBusyError(
                f"{target} is being written by {_named(owner, file)}.",
                hint="Wait until it is done, or write to another path.",
            )
        is_one = stat.S_ISREG(status.st_mode) and (owner.keys() >= _LOCK_KEYS or status.st_size == 0)
        if not is_one or status.st_nlink > 1:
            os.close(descriptor)
            raise _no_lock(file)
        if _is_same_file(file, descriptor):
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
        f"{file} is where a lock should be, and is none.", hint="Move it, or write to another path."
    )


def _identity(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return os.getpid(), status.st_dev, status.st_ino


def _lock(descriptor: int) -> bool | None:
    """Whether the lock of an open file was free and is now this process's; None where there are no locks."""
    if _FLOCK is None:
        return None
    try:
        _FLOCK.flock(descriptor, _FLOCK.LOCK_EX | _FLOCK.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _is_same_file(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> dict[str, Any]:
    """The holder's record in the lock; empty where it is not yet written."""
    try:
        owner = json.loads(os.read(descriptor, 4096))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _named(owner: dict[str, Any], file: Path) -> str:
    if not owner:
        return "another process"
    with contextlib.suppress(OSError):
        minutes = max(0.0, time.time() - file.stat().st_mtime) / 60
        return f"process {owner.get('process')} on {owner.get('host')}, which began {minutes:.0f} minutes ago"
    return f"process {owner.get('process')} on {owner.get('host')}"
