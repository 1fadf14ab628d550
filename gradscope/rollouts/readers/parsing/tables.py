"""Rows of a file or of many, whatever holds them: JSON lines, a JSON document, Parquet or CSV."""

from __future__ import annotations

import csv
import glob
import io
import json
import re
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.jsonl import read_bytes, read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

Row = tuple[str, dict[str, Any]]
"""``file:line`` and the row's cells."""

_BATCH = 4096
"""Rows of a Parquet file that are held as Python objects at once."""
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")


def expand(path: Path) -> tuple[Path, ...]:
    """The files that a path means, in natural order: ``2.jsonl`` before ``10.jsonl``.

    Args:
        path: A file, a folder (its files of rows, not those of its folders) or a glob.

    Returns:
        The files.
    """
    if path.is_file():
        return (path,)
    if path.is_dir():
        return tuple(sorted((file for file in path.iterdir() if file.is_file() and suffix_of(file)), key=natural))
    return tuple(sorted((Path(name) for name in glob.glob(str(path)) if Path(name).is_file()), key=natural))


def files_like(path: Path, *patterns: str) -> tuple[Path, ...]:
    """A trainer's files, wherever in its folders somebody stands.

    Args:
        path: A file, a folder or a glob.
        patterns: Globs from the folder that the trainer writes to down to its files, each as seen from another folder.

    Returns:
        The files of the first pattern that finds any, in natural order; of a file or a glob, those whose names fit.
    """
    if path.is_dir():
        for pattern in patterns:
            files = [file for file in path.glob(pattern) if file.is_file()]
            if files:
                return tuple(sorted(files, key=_natural_path))
        return ()
    names = {PurePath(pattern).name for pattern in patterns}
    return tuple(file for file in expand(path) if any(file.match(name) for name in names))


def _natural_path(path: Path) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def natural(path: Path) -> tuple[int, str]:
    """A sorting key that puts numbered files in order: the last number in the name (0 without any), then the name."""
    digits = "".join(letter if letter.isdigit() else " " for letter in path.name.split(".")[0]).split()
    return (int(digits[-1]) if digits else 0, path.name)


def suffix_of(path: Path) -> str | None:
    """The rows that a file's name promises: one of ``SUFFIXES``, also before ``.gz`` or ``.zst``; None for others."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def is_untyped(path: Path) -> bool:
    """Whether a file's cells are all text: those of CSV are."""
    return suffix_of(path) == ".csv"


def read_rows(path: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The rows of one file, each with its ``file:line``, counted from 1.

    Args:
        path: An existing file; names without a known ending are read as JSON lines.
        quarantine: Takes the lines that hold no row.

    Yields:
        Location and cells.
    """
    match suffix_of(path):
        case ".parquet":
            yield from ((f"{path}:{number}", row) for number, row in enumerate(_parquet_rows(path), start=1))
        case ".csv":
            yield from _read_csv(path, quarantine)
        case ".json":
            yield from _read_json(path, quarantine)
        case _:
            yield from read_jsonl(path, quarantine)


def read_parquet(path: Path, *, without: Container[str] = ()) -> pa.Table:
    """A Parquet file, or all but some of its columns."""
    with _named_if_damaged(path), path.open("rb") as stream:  # as a path, "a=1/" above it would become a column
        file = pq.ParquetFile(stream)
        return file.read(columns=[name for name in file.schema_arrow.names if name not in without])


def parquet_columns(path: Path) -> tuple[str, ...]:
    """The names of a Parquet file's columns, in order."""
    with _named_if_damaged(path), path.open("rb") as stream:
        return tuple(pq.read_schema(stream).names)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    with _named_if_damaged(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            yield from batch.to_pylist()


@contextmanager
def _named_if_damaged(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into ours: part of a Parquet file cannot be trusted, so nothing is used."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path} is not a readable Parquet file ({reason}).",
            hint="It was probably cut off: copy it again, or move it out of the folder.",
        ) from error


def _read_csv(path: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # completions outgrow the default of 128 KiB
    data = b"".join(read_bytes(path))
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig", errors="surrogateescape"), newline=""))
    header = next(reader, [])
    for cells in reader:
        location = f"{path}:{reader.line_num}"
        if not any(cells):
            quarantine.add("the line is blank", location)
        elif len(cells) != len(header):
            quarantine.add("the row has more or fewer cells than the header", location)
        elif any("\udc80" <= letter <= "\udcff" for cell in cells for letter in cell):
            quarantine.add("the line is not UTF-8", location)
        else:
            yield location, dict(zip(header, cells, strict=True))


def _read_json(path: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The elements of one document's list, or its one object; where it is no document, JSON lines under such a name."""
    try:
        document = json.loads(b"".join(read_bytes(path)).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        yield from read_jsonl(path, quarantine)
        return
    for number, row in enumerate(document if isinstance(document, list) else [document], start=1):
        if isinstance(row, dict):
            yield f"{path}:{number}", row
        else:
            quarantine.add("the element is not a JSON object", f"{path}:{number}")
