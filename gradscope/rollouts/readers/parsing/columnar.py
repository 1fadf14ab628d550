"""Files that are read by columns: Parquet, and Arrow's stream, as which Hugging Face's datasets are saved."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from gradscope.errors import InputError
from gradscope.outside.limits import in_mib, max_unpacked, open_file, raise_limits
from gradscope.results.source import TWICE, first_duplicate
from gradscope.rollouts.arrays import as_plain_types, expanded_bytes
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH = 64
"""Rows of a Parquet file that are decoded at once: a few bytes on disk may stand for a large cell in every row."""
_CHUNK = 1024  # the same where they stay columns, whose texts are no dictionary
_BATCH_BYTES, _BATCH_ROWS = 64 << 20, 1 << 16  # of a batch of columns, by the sizes in the file's metadata
_BUFFER = 1 << 16
"""Bytes of a Parquet file that are read at once: else its first rows cost as much as all of their row group."""


def read_parquet(path: Path, *, excluded: Container[str] = ()) -> pa.Table:
    """A Parquet file without ``excluded`` columns; one that names a column twice is an :class:`InputError`."""
    with open_parquet(path) as file:  # given its path, Arrow would make a column of a folder named "a=1"
        return table_in(path, file, excluded=excluded)


def table_in(path: Path, file: pq.ParquetFile, *, excluded: Container[str]) -> pa.Table:
    """:func:`read_parquet` of an open file."""
    duplicate = first_duplicate(file.schema_arrow.names)
    if duplicate is not None:
        raise InputError(f"{path}: {TWICE.format(duplicate)}.", hint="Write each column under a name of its own.")
    chosen = [name for name in file.schema_arrow.names if name not in excluded]
    kinds = [file.schema_arrow.field(name).type for name in chosen]
    are_narrow = all(pa.types.is_primitive(kind) or pa.types.is_dictionary(kind) for kind in kinds)
    max_rows = max(_BATCH_ROWS // max(len(chosen), 1), _CHUNK)  # repeated numbers take no more of a file than one
    size = _rows_at_once(file.metadata, max_rows) if are_narrow else _CHUNK
    batches = list(_batches(path, file, columns=chosen, size=size))
    table = pa.Table.from_batches(batches, schema=None if batches else file.schema_arrow).select(chosen)
    return table.replace_schema_metadata(file.schema_arrow.metadata)


def parquet_batches(
    path: Path, names: Collection[str] | None, texts: Collection[str] = ()
) -> Iterator[tuple[pa.RecordBatch, int, list[int], str | None]]:
    """Columns of a Parquet file, or all, many rows at a time; text that repeats stays a dictionary.

    The dictionaries of ``texts`` count once against the limit: their values are not copied row by row.

    Yields:
        Rows, how many bytes of the file were read, its :func:`first_rows`, and a name that two of its columns share.
    """
    with open_parquet(path) as file:
        present = file.schema_arrow.names
        chosen = [name for name in dict.fromkeys(present) if names is None or name in names or name in texts]
        duplicate, size, metadata = first_duplicate(present), path.stat().st_size, file.metadata
    kinds = {} if duplicate else {name: file.schema_arrow.field(name).type for name in chosen}
    folded = [name for name, kind in kinds.items() if kind in (pa.string(), pa.large_string())]
    rows_of, at_once = max(metadata.num_rows, 1), _rows_at_once(metadata, _CHUNK if names is None else _BATCH_ROWS)
    bounds = first_rows(metadata)
    with open_parquet(path, read_dictionary=folded) as file:
        num_read = 0
        for batch in _batches(path, file, columns=[] if duplicate else chosen, size=at_once, texts=texts):
            num_read += batch.num_rows
            yield batch, size * num_read // rows_of, bounds, duplicate


def _rows_at_once(metadata: pq.FileMetaData, max_rows: int) -> int:
    """How many rows of a Parquet file a batch of columns has."""
    num_bytes: int = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    num_rows: int = metadata.num_rows
    return min(max(_BATCH_BYTES * num_rows // max(num_bytes, 1), _BATCH), max_rows)


def first_rows(metadata: pq.FileMetaData) -> list[int]:
    """The number of the first row of each row group, from 0, and of all rows."""
    return list(accumulate((metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)), initial=0))


def parquet_rows_in(path: Path, start: int, end: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a Parquet file from one up to another, counted from 0, each with its ``file:row``."""
    with open_parquet(path) as file:
        bounds = first_rows(file.metadata)
        groups = [group for group, (low, high) in enumerate(pairwise(bounds)) if low < end and start < high]
        number = bounds[groups[0]] if groups else end  # the file may be shorter than it was
        for batch in _batches(path, file, row_groups=groups):
            if number >= end:
                break
            chosen = batch.slice(max(start - number, 0), max(end - max(start, number), 0))
            yield from ((f"{path}:{i}", row) for i, row in enumerate(chosen.to_pylist(), max(start, number) + 1))
            number += batch.num_rows


def read_parquet_rows(
    path: Path, quarantine: QuarantineLog, columns: Collection[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a Parquet file, each with its ``file:row`` and all cells or those of ``columns``."""
    with open_parquet(path) as file:
        duplicate = first_duplicate(names := file.schema_arrow.names)
        number, size = 0, path.stat().st_size
        for batch in _batches(path, file, None if columns is None else [name for name in names if name in columns]):
            quarantine.count_read(size * batch.num_rows // max(file.metadata.num_rows, 1), batch.num_rows)
            for row in batch.to_pylist():
                number += 1
                if duplicate is None:
                    yield f"{path}:{number}", row
                else:
                    quarantine.add(TWICE.format(duplicate), f"{path}:{number}")


def _batches(
    path: Path,
    file: pq.ParquetFile,
    columns: list[str] | None = None,
    size: int = _BATCH,
    texts: Collection[str] = (),
    row_groups: list[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or of some row groups, a few at a time; an InputError where they have too many bytes."""
    # Each row counts what it refers to in a dictionary, but for the dictionaries of ``texts``.
    left = max_unpacked(path)
    for batch in file.iter_batches(batch_size=size, columns=columns, row_groups=row_groups, use_threads=False):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            is_shared = name in texts and pa.types.is_dictionary(column.type)
            left -= column.nbytes if is_shared else expanded_bytes(column)
        if left < 0:
            raise InputError(f"{path} unpacks to more than {in_mib(max_unpacked(path))}.", hint=raise_limits(path))
        batch.validate(full=True)  # else text that is not UTF-8 fails where a row of it is made
        yield pa.RecordBatch.from_struct_array(as_plain_types(batch.to_struct_array()))


@contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[pq.ParquetFile]:
    """An open Parquet file; errors of reading it become an :class:`InputError`."""
    import pyarrow.parquet as pq  # 30 ms that no other log needs

    try:
        with (
            open_file(path) as stream,
            pq.ParquetFile(
                _as_parquet(path, stream) if path.suffix == ".arrow" else stream,
                pre_buffer=False,
                buffer_size=_BUFFER,
                page_checksum_verification=True,
                **options,
            ) as file,
        ):
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # part of a damaged file cannot be trusted
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path} is not a readable {'Arrow' if path.suffix == '.arrow' else 'Parquet'} file ({reason}).",
            hint="It was probably cut off: copy it again, or move it out of the folder.",
        ) from error


def _as_parquet(path: Path, stream: IO[bytes]) -> pa.BufferReader:
    """A stream or file of Arrow's, whose offsets nobody has checked, as Parquet."""
    import pyarrow.parquet as pq

    batches, left = list[pa.RecordBatch](), max_unpacked(path)
    if stream.read(8) != b"ARROW1\0\0":  # before the stream that a file is
        stream.seek(0)
    with pa.ipc.open_stream(stream) as reader:
        for batch in reader:
            batch.validate(full=True)
            left -= batch.nbytes
            if left < 0:
                raise InputError(f"{path} unpacks to more than {in_mib(max_unpacked(path))}.", hint=raise_limits(path))
            batches.append(batch)
        table = pa.Table.from_batches(batches, schema=reader.schema)
    pq.write_table(table, sink := pa.BufferOutputStream())
    return pa.BufferReader(sink.getvalue())
