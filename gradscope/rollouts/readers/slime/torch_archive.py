"""Plain data out of a file of ``torch.save``, without running any of it.

A pickle runs code by naming a class or a function and calling it. Here no name is ever looked up: whatever is not a
number, a text, a list or a dictionary becomes an empty stand-in, tensors too.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, in_mib, most, raise_limits, require_regular
from gradscope.outside.plain_json import MOST_DEPTH, is_deeper
from gradscope.outside.zips import is_zip
from gradscope.rollouts.readers.slime.pickle_bounds import num_parts, require_bounded

_BROKEN = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, OverflowError),
    *(LookupError, TypeError, ValueError, AttributeError, RuntimeError),
)
"""What an archive raises that was cut off or made to be odd."""


class StandIn:
    """Takes the place of every object that is not plain data; it can be called, filled and restored, to no effect."""

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
    """Whether a file is a zip, the form that ``torch.save`` gives it; older forms are bare pickles."""
    return is_zip(path)


def read_archive(path: Path) -> Any:
    """The plain data of a file of ``torch.save``.

    Returns:
        The object, with a :class:`StandIn` for every part of it that is not plain data.

    Raises:
        InputError: It is damaged, no such archive, or larger than may be read.
    """
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
