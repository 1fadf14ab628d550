"""Which files are read: regular ones, up to a size.

A pipe, a socket or a device may never end, a few bytes may unpack to all memory, and one row of a log may be a
document. Each limit is far above what trainers write; :data:`VARIABLE` raises all of them for one command.
"""

from __future__ import annotations

import io
import os
import shlex
import signal
import stat
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from gradscope.errors import InputError, UsageError
from gradscope.outside.numerals import number_from

VARIABLE = "GRADSCOPE_LIMITS"
"""The environment variable that every limit of size is multiplied by, so that a larger file is a choice."""
MAX_ROW = 256 << 20
"""Bytes of one line, of one member of an archive and of one document: the longest rollouts, with every token's numbers,
take some ten MB, and as Python objects text of this size takes up to 2 GB."""
MAX_UNPACKED = 512 << 20  # bytes that any compressed file may unpack to, however small it is
MAX_RATIO = 200
"""How many times its size a compressed file may unpack to beyond that: rollouts of one prompt are alike and compress
ten- to thirtyfold, a file made to fill memory a thousandfold."""
_MAX_CPU_SECONDS = 5  # of processor time, for the template of one prompt: an honest one takes milliseconds
_MAX_MEMORY = 1 << 30
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_LFS = b"version https://git-lfs.github.com/spec/"
_MAX_POINTER = 1024  # bytes that a pointer of Git LFS has at most, by its specification


def allowed(limit: int) -> int:
    """One of the limits above as the environment sets it.

    Raises:
        UsageError: The variable is no number from 1 on.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return limit
    try:
        factor = number_from(text)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < float("inf"):
        raise UsageError(
            f"{VARIABLE} is {text!r}, which is no number from 1 on.",
            hint=f"Set {VARIABLE}=4 to allow four times as much.",
        )
    return int(limit * factor)


def raise_limits(path: Path) -> str:
    """The hint of an error about a limit."""
    return f"Where {path.name} is meant to be so large, set {VARIABLE}=4 to allow four times as much."


def in_mib(size: int) -> str:
    """A size in a message, in MiB without a fraction.

    >>> in_mib(256 << 20)
    '256 MiB'
    """
    return f"{size >> 20} MiB"


def require_regular(path: Path) -> None:
    """Refuse to open anything but a file, as reading it may never end, and pointers to files.

    Args:
        path: The path to be opened; a missing one, or a folder, is left to the opening.

    Raises:
        InputError: It is a pipe, a socket or a device, also by a link, or the pointer that Git LFS leaves of a file.
    """
    try:
        status = path.stat()
        kind = next((name for is_one, name in _KINDS if is_one(status.st_mode)), None)
        is_pointer = False
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_POINTER:
            with path.open("rb") as stream:
                is_pointer = stream.read(len(_LFS)) == _LFS
    except (OSError, ValueError):
        return
    if kind is not None:
        raise InputError(
            f"{path} is {kind}, and only files are read.", hint="Write its content to a file and name that."
        )
    if is_pointer:
        raise InputError(
            f"{path} is a pointer of Git LFS, and the file itself was not downloaded.",
            hint=f"Download it: git -C {shlex.quote(str(path.parent))} lfs pull",
        )


@contextmanager
def ending(subject: str) -> Iterator[None]:
    """Run untrusted code or data, the ``subject``, with limits on processor time and on memory beyond the current use.

    Where a system has no such limits, and outside the main thread, it runs without them.

    Raises:
        InputError: It took more.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGVTALRM"):
        yield
        return
    import resource

    error = InputError(
        f"{subject} takes more than {_MAX_CPU_SECONDS} s or {in_mib(_MAX_MEMORY)}.",
        hint="Look at it before you run it anywhere; where it is meant, it has to be made simpler.",
    )

    def too_long(*_: object) -> None:
        raise error

    before, (soft, hard) = signal.signal(signal.SIGVTALRM, too_long), resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError):  # not on Linux: the memory in use is not known, and not limited
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        if soft == resource.RLIM_INFINITY or soft > held + _MAX_MEMORY:
            resource.setrlimit(resource.RLIMIT_AS, (held + _MAX_MEMORY, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_CPU_SECONDS)
    try:
        yield
    except MemoryError as exhausted:
        raise error from exhausted
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


BUFFER = 1 << 18  # bytes: lines of logs are long


def open_file(path: Path, buffer: int = BUFFER) -> io.BufferedReader:
    """A file's bytes; anything but a regular file is refused by :func:`require_regular` before it is opened."""
    require_regular(path)
    return cast(io.BufferedReader, path.open("rb", buffering=buffer))


def read_limited(path: Path) -> bytes:
    """A small file at once: a configuration, a manifest, an index.

    Raises:
        InputError: It is no regular file, or larger than ``MAX_ROW``.
    """
    largest = allowed(MAX_ROW)
    with open_file(path) as stream:
        data = stream.read(largest + 1)
    if len(data) > largest:
        raise InputError(f"{path} is larger than {in_mib(largest)}.", hint=raise_limits(path))
    return data


def max_unpacked(path: Path) -> int:
    """Bytes that a compressed file may unpack to, by its own size."""
    return max(allowed(MAX_UNPACKED), allowed(MAX_RATIO) * path.stat().st_size)


_PIECE = 1 << 16  # bytes decompressed at once; so many may be lost before the damage


class Unpacked(io.RawIOBase):
    """A decompressed stream that ends where its file is cut off, and in an error where more comes out than may."""

    def __init__(self, stream: io.BufferedIOBase, path: Path) -> None:
        """Nothing is read yet of ``stream``, which gives the decompressed bytes of the file ``path``."""
        self._stream = stream
        self._path = path
        self._left = max_unpacked(path)
        self.failure: OSError | None = None
        """Why the rest cannot be decompressed; raised while reading, it would cost the bytes before it, too."""

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes, as io asks for them.

        Raises:
            InputError: They are more than :func:`max_unpacked`.
        """
        try:
            data = b"" if self.failure else self._stream.read1(min(len(buffer), _PIECE))
        except Exception as error:  # each format has errors of its own
            data, self.failure = b"", OSError(str(error))
        self._left -= len(data)
        if self._left < 0:
            raise InputError(
                f"{self._path} unpacks to more than {in_mib(max_unpacked(self._path))}, "
                f"which is {MAX_RATIO} times its size and more than {in_mib(allowed(MAX_UNPACKED))}.",
                hint=raise_limits(self._path),
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the stream below, too."""
        self._stream.close()
        super().close()


def is_zip(file: Path | IO[bytes]) -> bool:
    """Whether a file ends as a zip does, damaged or not, so that opening it reports the damage; not if unreadable."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:  # Python checks more than its documentation says, and raises over it
        return True
