"""How the usual rows of a format become columns: the keys that it reads with the types they have, and one function.

A row is usual where msgspec decodes it into the declared struct and the function finds nothing odd in it; any other
goes to the row reader, alone. So a declaration need not say what becomes of strange cells: it leaves them out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_floats
from gradscope.rollouts.readers.parsing.cells import LARGEST_STEP, digest, finite_or_none, whole_number

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

REWARD = "reward/"
"""What stands before the name of a reward function in the name of its column."""
NOT_COMPARED = 0
"""Stands for what tells a rollout apart where only the row reader can compare it."""
Number = float | bool | None
"""The usual types of a reward; null makes its row odd."""
Name = str | int
"""The usual types of an id."""
_NUMBERS = frozenset({float, int, bool, type(None)})
_NAMES = frozenset({str, int})
_NO_STEP = -1
_ID_CELLS = b" 0123456789,"
_CELLS = _ID_CELLS + b".-+eEnultrfas"
"""What stands in a JSON list of whole numbers, and in one of numbers, booleans and null."""
_STRANGE = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""What a key of a struct must not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Some rows as columns, [R] each."""

    step: NDArray[np.int64]
    """Whole numbers from 0 on; -1 makes the row odd."""
    group: list[str] | pa.Array
    """What the rows of a group share within a step; "" makes the row odd."""
    prompts: Callable[[list[int]], list[str]]
    """The ids of the prompts of some rows: asked for the first row of each group."""
    texts: Callable[[list[int]], list[str]] | None = None
    """The texts of the prompts of some rows; None: the log has none."""
    numbers: Mapping[str, NDArray[Any]]
    """``reward``, which where it is not finite makes the row odd, and each reward function as ``reward/NAME``; any of
    ``seconds``, ``advantage``, ``num_tokens`` and ``sample``, as ``Part`` has them."""
    is_odd: NDArray[np.bool_] | None = None
    """What else is odd; None: nothing."""
    noted: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Sentences on the log, and which usual rows call for them, [R]."""


@dataclass(frozen=True, kw_only=True)
class LineColumns:
    """How the usual lines of a file become columns."""

    row: type[msgspec.Struct]
    """The keys that are read, with their usual types."""
    take: Callable[[Sequence[Any], Path], Columns]
    """What rows of a file say; at least one."""
    looks_at_path: bool = False
    """Whether they say something else in a file of another name."""
    decoder: msgspec.json.Decoder[Any] = field(init=False)
    """Of the struct."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "decoder", msgspec.json.Decoder(self.row))


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """How the rows of a Parquet or CSV file become columns."""

    names: tuple[str, ...]
    """The columns that are read, where the file has them."""
    take: Callable[[pa.RecordBatch], Columns]
    """What rows say; cells of CSV are strings."""


class Keys:
    """The keys that are read of a row, each once."""

    def __init__(self) -> None:
        self._kinds: dict[str, Any] = {}

    def __call__(self, key: str, kind: Any) -> Callable[[Any], Any]:
        """A key and the usual type of its cells, any where it is asked for with several.

        Returns:
            What takes its cell from a row.
        """
        self._kinds[key] = kind if self._kinds.setdefault(key, kind) == kind else Any
        return attrgetter(f"x{list(self._kinds).index(key)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    @property
    def are_plain(self) -> bool:
        """Whether they can be keys of a struct."""
        return not any(_STRANGE.search(key) for key in self._kinds)

    def struct(self, *, is_complete: bool = False) -> type[msgspec.Struct]:
        """The rows with these keys; a key whose type takes ``UNSET`` may be missing.

        Args:
            is_complete: Whether a row with any other key is odd.

        Returns:
            Their type.
        """
        kinds = {f"x{at}": kind for at, kind in enumerate(self._kinds.values())}
        fields = [(name, kind, UNSET) if _may_lack(kind) else (name, kind) for name, kind in kinds.items()]
        return msgspec.defstruct(
            "Row",
            sorted(fields, key=len),
            rename=dict(zip(kinds, self._kinds, strict=True)),
            gc=False,
            forbid_unknown_fields=is_complete,
        )


def _may_lack(kind: Any) -> bool:
    return UnsetType in getattr(kind, "__args__", ())


def numbers_of(cells: Sequence[Any]) -> Floats:
    """Numbers, booleans as 1 and 0; NaN for any other cell and what is not finite, [R]."""
    if _NUMBERS.issuperset(map(type, cells)):
        try:
            found = np.array(cells, dtype=np.float64)
            return found if np.isfinite(found).all() else np.where(np.isfinite(found), found, math.nan)
        except OverflowError:  # a whole number beyond all floats
            pass
    return to_floats(None if cell is UNSET else finite_or_none(cell) for cell in cells)


def rewards_of(cells: Sequence[Any], name_of: Callable[[str], str] = REWARD.__add__) -> dict[str, Floats]:
    """The columns of reward functions from objects of their rewards, of which other cells are left out."""
    objects = [cell if type(cell) is dict else {} for cell in cells]
    found = {}
    for name in dict.fromkeys(name for keys in dict.fromkeys(map(tuple, objects)) for name in keys):
        values = [one.get(name) for one in objects]
        if any(type(value) in _NUMBERS and value is not None for value in values):
            found[name_of(name)] = numbers_of(values)
    return found


def whole_names_of(cells: Sequence[Any]) -> list[str]:
    """Whole numbers as text; "" for a cell that is none, [R]."""
    return [str(number) if number >= 0 else "" for number in step_numbers(cells).tolist()]


def step_numbers(cells: Sequence[Any]) -> NDArray[np.int64]:
    """Steps as ``whole_number`` tells them; -1 where one is none, [R]."""
    try:
        if {int}.issuperset(map(type, cells)):
            found = np.array(cells, dtype=np.int64)
            return np.where((found < 0) | (found > LARGEST_STEP), _NO_STEP, found)
    except OverflowError:
        pass
    numbers = map(whole_number, cells)
    return np.array([_NO_STEP if number is None else number for number in numbers], dtype=np.int64)


def id_texts(cells: Sequence[Any]) -> list[str]:
    """Ids as text; "" for a cell that is neither text nor a whole number, [R]."""
    kinds = set(map(type, cells))
    if kinds == {str}:
        return list(cells)
    return [str(cell) if type(cell) in _NAMES else "" for cell in cells]


def sample_hashes(cells: Iterable[str | None]) -> NDArray[np.uint32]:
    """A short hash of what tells each rollout from the others of its group; 0 where nothing does, [R]."""
    return np.array(
        [NOT_COMPARED if cell is None else zlib.crc32(cell.encode("utf-8", "surrogatepass")) | 1 for cell in cells],
        dtype=np.uint32,
    )


def json_of(cell: Any) -> bytes:
    """The JSON text of a cell that was not parsed, or of one that was; a missing one is null."""
    if isinstance(cell, Raw):
        return bytes(cell)
    return b"null" if cell is UNSET else json.dumps(cell).encode()


def jsons_of(cells: Sequence[Any]) -> list[bytes]:
    """:func:`json_of` of each, [R]."""
    return list(map(bytes if {Raw}.issuperset(map(type, cells)) else json_of, cells))


def flat_length(text: bytes) -> int:
    """How many cells a JSON text has that is a flat list without text; -1 where it is anything else."""
    if text.translate(None, _CELLS) != b"[]":
        return -1
    return text.count(b",") + 1 if text.strip(b"[ ]") else 0


def num_ids(text: bytes) -> int:
    """How many ids a JSON text has that is a list of whole numbers from 0 on; -1 where it is anything else."""
    return flat_length(text) if text.translate(None, _ID_CELLS) == b"[]" else -1


def flat_lengths(texts: Sequence[bytes]) -> Counts:
    """:func:`flat_length` of each, [R]."""
    return _lengths(texts, _CELLS, flat_length)


def nums_ids(texts: Sequence[bytes]) -> Counts:
    """:func:`num_ids` of each, [R]."""
    return _lengths(texts, _ID_CELLS, num_ids)


def _lengths(texts: Sequence[bytes], cells: bytes, length_of: Callable[[bytes], int]) -> Counts:
    """Of JSON texts that all are such lists only commas are counted, as one look at all of them together says so."""
    if b"".join(texts).translate(None, cells) != b"[]" * len(texts):
        return np.array(list(map(length_of, texts)), dtype=np.int64)
    commas = [text.count(b",") for text in texts]
    return np.array([count + 1 if count else length_of(text) for count, text in zip(commas, texts, strict=True)])


def ids_digest(text: bytes) -> str:
    """The ``digest`` of a list of whole numbers."""
    spaced = text.replace(b" ", b"").replace(b",", b", ")
    return hashlib.sha256(b"[" + spaced + b"]").hexdigest()[:16]


def digest_of(*texts: bytes) -> str:
    """The ``digest`` of what JSON texts say."""
    if all(map(_is_canonical, texts)):  # what json.dumps would write is there already
        return hashlib.sha256(b"[" + b", ".join(texts) + b"]").hexdigest()[:16]
    return digest(*map(json.loads, texts))


def digests_of(rows: Sequence[tuple[bytes, ...]]) -> list[str]:
    """:func:`digest_of` of each row's JSON texts, [R]."""
    texts = [text for row in rows for text in row]
    if {text[:1] for text in texts} == {b'"'} and _is_canonical(b"".join(texts)):  # of all of them at once
        return [hashlib.sha256(b"[" + b", ".join(row) + b"]").hexdigest()[:16] for row in rows]
    return [digest_of(*row) for row in rows]


def _is_canonical(text: bytes) -> bool:
    is_plain = text[:1] == b'"' and text.isascii() and b"\x7f" not in text
    return is_plain and (b"\\" not in text or not (b"\\u" in text or b"\\/" in text))
