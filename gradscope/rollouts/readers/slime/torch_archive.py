"""Plain data out of a file of ``torch.save``, without running any of it.

A pickle runs code by naming a class or a function and calling it. This module looks up no name: whatever is not a
number, a text, a list or a dictionary becomes an empty stand-in, tensors too. A pickle of a hundred bytes may also ask
for a memo of four billion entries, or for a string of eight exabytes. So its operations are checked first, without
executing any: an index of the memo may not exceed the pickle's length, nor an argument the bytes that are left.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, in_mib, is_zip, most, raise_limits, require_regular
from gradscope.outside.plain_json import MOST_DEPTH, is_deeper

_FIXED = re.compile(
    rb"(?:[\](tu}asel)0NbdoR.\x81\x85-\x89\x8f-\x91\x93\x94\x97\x98Q]|[Khq\x80]." rb"|M..|[jJ]....|G.{8}|\x95.{8})++",
    re.DOTALL,
)
"""Operations whose arguments have a fixed length and ask for no memory: nearly all of a pickle of numbers."""
_SIZED = {
    **dict.fromkeys((b"U", b"C", b"\x8a", b"\x8c"), 1),
    **dict.fromkeys((b"X", b"T", b"B", b"\x8b"), 4),
    **dict.fromkeys((b"\x8d", b"\x8e", b"\x96"), 8),
}
"""Operation -> number of bytes with the length of its argument."""
_LINES = {b"c": 2, b"i": 2}  # operation -> lines that are its argument, where there are more than one
_BY_LINE = frozenset({b"F", b"I", b"L", b"S", b"V", b"P", b"g", b"p", b"c", b"i"})
"""Operations whose argument is a line: those of the oldest protocol."""
_PUT_LONG = b"r"
_END = b"."


def require_bounded(data: bytes) -> None:
    """Refuse, by a ValueError, a pickle that declares more than it holds, or has an unknown operation."""
    at = 0
    while at < len(data):
        run = _FIXED.match(data, at)
        if run is not None:
            at = run.end()
            if data[at - 1 : at] == _END and at == len(data):
                return
            continue
        code = data[at : at + 1]
        at += 1
        if code in _SIZED:
            width = _SIZED[code]
            length = int.from_bytes(data[at : at + width], "little")
            at += width + length
        elif code == _PUT_LONG:
            (index,) = struct.unpack_from("<I", data, at)
            if index > len(data):
                raise ValueError(f"place {index} of the memo is beyond the pickle")
            at += 4
        elif code in _BY_LINE:
            for _ in range(_LINES.get(code, 1)):
                start, at = at, data.index(b"\n", at) + 1
            if code == b"p" and int(data[start : at - 1]) > len(data):
                raise ValueError("a place of the memo is beyond the pickle")
        else:
            raise ValueError(f"{code!r} is no operation of a pickle that holds plain data")
    if at > len(data):
        raise ValueError("an argument is longer than what is left of the pickle")


def num_parts(value: Any) -> int:
    """Elements in lists and dictionaries that are not nested too deeply; a shared one counts each time."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if type(node) not in (list, dict, tuple):
            return 1
        if id(node) not in sizes:
            parts = node.values() if type(node) is dict else node
            inner = [part for part in parts if type(part) in (list, dict, tuple)]
            sizes[id(node)] = len(node) - len(inner) + 1 + sum(map(size, inner))
        return sizes[id(node)]

    return size(value)


_BROKEN = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, OverflowError),
    *(LookupError, TypeError, ValueError, AttributeError, RuntimeError),
)
"""Errors of reading an archive that was cut off or is malicious."""


class StandIn:
    """Replaces every object that is not plain data; it can be called, filled and restored, to no effect."""

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None:
        """Forget an element."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return StandIn

    def persistent_load(self, pid: Any, /) -> Any:
        return StandIn()


def is_archive(path: Path) -> bool:
    """Whether a file is a zip, as ``torch.save`` writes it; older versions wrote bare pickles."""
    return is_zip(path)


def read_archive(path: Path) -> Any:
    """A file of ``torch.save`` with a :class:`StandIn` for all that is not plain data; an InputError if damaged."""
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            (member,) = (member for member in archive.infolist() if member.filename.endswith("/data.pkl"))
            if member.file_size > most(MOST_ROW):
                raise InputError(f"{path} unpacks to more than {in_mib(most(MOST_ROW))}.", hint=raise_limits(path))
            data = archive.read(member)
        require_bounded(data)
        value = _PlainUnpickler(io.BytesIO(data)).load()
    except _BROKEN as error:
        raise InputError(f"{path} cannot be read: {error}.", hint="Copy the file again.") from error
    if is_deeper(value, MOST_DEPTH) or num_parts(value) > most(MOST_ROW):
        raise InputError(
            f"{path} is nested deeper than {MOST_DEPTH} levels, or repeats itself without end.",
            hint="Copy the file again.",
        )
    return value
