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
import zipfile
import zlib
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import MAX_ROW, allowed, in_mib, raise_limits, require_regular
from gradscope.outside.plain_json import MAX_DEPTH, is_deeper

_EXTENSIONS = ("EXT1", "EXT2", "EXT4")
_TEXT, _PUT, _END = b"X", b"r", b"."
_FIXED = re.compile(
    rb"(?:[\](tu}asel)0NbdoR.\x81\x85-\x89\x8f-\x91\x93\x94\x97\x98Q]|[Khq\x80]." rb"|M..|[jJ]....|G.{8}|\x95.{8})++",
    re.DOTALL,
)
"""Operations whose arguments have a fixed length and ask for no memory: nearly all of a pickle of numbers."""


def require_bounded(data: bytes) -> None:
    """Refuse, by a ValueError, a pickle that declares more than it holds, or has an unknown operation."""
    import pickletools  # 10 ms that no other log needs

    position, stream = 0, io.BytesIO(data)
    while position < len(data):
        run = _FIXED.match(data, position)
        if run is not None:
            position = run.end()
            if data[position - 1 : position] == _END and position == len(data):
                return
            continue
        code, index = data[position : position + 1], 0
        if code in (_TEXT, _PUT):  # of these there are so many that a look by hand pays
            length, position = int.from_bytes(data[position + 1 : position + 5], "little"), position + 5
            index, position = (length, position) if code == _PUT else (0, position + length)
        else:
            stream.seek(position)
            operation, argument, _ = next(pickletools.genops(stream))
            if operation.name in _EXTENSIONS:  # names of a registry, which would come as they are
                raise ValueError(f"{operation.name} is no operation of a pickle that holds plain data")
            index, position = int(argument or 0) if operation.name == "PUT" else 0, stream.tell()
        if index > len(data):
            raise ValueError(f"place {index} of the memo is beyond the pickle")
    if position > len(data):
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
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError, OSError, OverflowError),
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


def read_archive(path: Path) -> Any:
    """A file of ``torch.save`` with a :class:`StandIn` for all that is not plain data; an InputError if damaged."""
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            (member,) = (member for member in archive.infolist() if member.filename.endswith("/data.pkl"))
            if member.file_size > allowed(MAX_ROW):
                raise InputError(f"{path} unpacks to more than {in_mib(allowed(MAX_ROW))}.", hint=raise_limits(path))
            data = archive.read(member)
        require_bounded(data)
        value = _PlainUnpickler(io.BytesIO(data)).load()
    except _BROKEN as error:
        raise InputError(f"{path} cannot be read: {error}.", hint="Copy the file again.") from error
    if is_deeper(value, MAX_DEPTH) or num_parts(value) > allowed(MAX_ROW):
        raise InputError(
            f"{path} is nested deeper than {MAX_DEPTH} levels, or repeats itself without end.",
            hint="Copy the file again.",
        )
    return value
