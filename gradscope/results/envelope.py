"""The JSON document that every command prints with --json and writes with --output.

Strict JSON: floats unrounded, shares in [0, 1]; a null has its reason next to it; a number that a trainer logged as NaN
or infinity is the text "NaN", "Infinity" or "-Infinity". Two runs on the same input differ in ``created_at`` only.
Long tables are rows that are made when they are read.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from msgspec import Struct
from msgspec.structs import force_setattr

from gradscope.copies import copy_of
from gradscope.errors import InputError
from gradscope.machine import in_threads
from gradscope.outside.limits import require_regular
from gradscope.say import non_finite_word
from gradscope.version import __version__

Row = dict[str, Any]


class RowValues(Protocol):
    """The values of a column: a NumPy array, or anything else that slices and becomes a list of plain values."""

    def __len__(self) -> int:
        """How many rows."""

    def __getitem__(self, rows: slice) -> RowValues:
        """Some of the rows."""

    def tolist(self) -> list[Any]:
        """The plain values."""


class LazyRows(Sequence[Row]):
    """Rows of named values, made from columns when they are asked for."""

    def __init__(self, columns: Mapping[str, RowValues]) -> None:
        """A table of columns, name -> values, all of one length."""
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, int):
            rows = range(len(self))[index]
            return self[rows : rows + 1][0]
        values = [column[index].tolist() for column in self._columns.values()]
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*values, strict=True)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyRows) and self[:] == other[:]

    __hash__ = None  # type: ignore[assignment]  # its columns may be arrays

    def __repr__(self) -> str:
        """Its length and the type of its items."""
        return f"<{len(self)} rows of {', '.join(self._columns)}>"


Value = TypeVar("Value")


class _Deferred:
    __slots__ = ("compute",)

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute


def deferred(compute: Callable[[], Value]) -> Value:
    """The computation of a field of a :class:`Deferring` record, done when it is first read."""
    return cast(Value, _Deferred(compute))


class Deferring(Struct, frozen=True):
    """A record some of whose fields cost much and are often not read: an answer of ten lines waits for no table."""

    if not TYPE_CHECKING:  # mypy would take every name for a field

        def __getattribute__(self, name):
            """The value, which replaces its computation."""
            value = object.__getattribute__(self, name)
            if type(value) is _Deferred:
                value = value.compute()
                force_setattr(self, name, value)
            return value

    def _compute_all(self) -> None:
        for name in self.__struct_fields__:
            getattr(self, name)

    def __eq__(self, other: object) -> bool:  # msgspec's own looks at the fields as they are
        for record in (self, other):
            if isinstance(record, Deferring):
                record._compute_all()
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # its fields may be mappings

    def __reduce__(self) -> Any:
        self._compute_all()
        return super().__reduce__()


SCHEMA_VERSION = 1


class PlainRows(list[dict[str, Any]]):
    """Rows of plain values: each is one line of the printed document, however many there are."""


_PLAIN = frozenset({str, bool, int, type(None)})


def to_jsonable(value: Any) -> Any:
    """A result object as plain JSON types: dicts with string keys, lists, numbers, strings, booleans and None.

    Raises:
        TypeError: Something else is in there: a caller's bug.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else non_finite_word(value)
    if isinstance(value, Struct):
        return {name: to_jsonable(item) for name, item in fields_of(value)}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, LazyRows):
        return PlainRows(value[:])
    if isinstance(value, (list, tuple, array)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (str, int)):
        return value
    raise TypeError(f"{type(value).__name__} does not belong in a result")


def fields_of(record: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of the fields of a record in its document.

    A class says which of its fields are for people alone, as they repeat the others in other words
    (``not_in_document``), and which are replaced by their own fields (``flattened``).
    """
    hidden, flattened = getattr(record, "not_in_document", ()), getattr(record, "flattened", ())
    for name in record.__struct_fields__:
        if name in flattened:
            yield from fields_of(getattr(record, name))
        elif name not in hidden:
            yield name, getattr(record, name)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    require_regular(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(path: Path) -> str | None:
    """The digest of an input; None of one that could not be read either, such as a pipe or a file that is gone."""
    try:
        return sha256_of(path)
    except (InputError, OSError):
        return None


def build_document(
    name: str,
    result: Any,
    *,
    files: Iterable[str | Path],
    definitions: Mapping[str, str],
    digests: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The envelope around the result of a command; ``digests`` are SHA-256 of files that were read elsewhere."""
    paths = [str(path) for path in files]
    digest_of = digests or {}
    file_digests = in_threads(lambda path: digest_of.get(path) or _digest(copy_of(path)), paths)
    return {
        "schema": f"gradscope/{name}",
        "schema_version": SCHEMA_VERSION,
        "gradscope": __version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "inputs": [{"path": path, "sha256": digest} for path, digest in zip(paths, file_digests, strict=True)],
        "definitions": dict(definitions),
        "result": to_jsonable(result),
    }


def render_json(document: Mapping[str, Any]) -> str:
    """The document as indented strict JSON in ASCII, which no terminal acts on and no encoding spoils."""
    import msgspec  # only commands that print a document load it

    mark, tables = f"rows {uuid.uuid4()} ", list[str]()
    encode = json.JSONEncoder(allow_nan=False).encode

    def marked(value: Any) -> Any:
        if isinstance(value, PlainRows) and value:
            tables.append(",\n".join(f"      {encode(row)}" for row in value))
            return f"{mark}{len(tables) - 1}"
        return {key: marked(item) for key, item in value.items()} if isinstance(value, dict) else value

    # nobody reads a million rows with one value a line; json's own indent would make its encoder fifty times slower
    shortened = marked(document)
    try:
        text = msgspec.json.format(encode(shortened), indent=2)
    except msgspec.DecodeError:  # half a surrogate pair, which json lets through
        text = json.dumps(shortened, indent=2, allow_nan=False)
    for number, rows in enumerate(tables):
        text = text.replace(f'"{mark}{number}"', f"[\n{rows}\n    ]")
    return text + "\n"
