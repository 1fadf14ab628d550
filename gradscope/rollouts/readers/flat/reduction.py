"""Flat logs of any size reduced to their groups, out of core: what degeneracy and pass@k need, and nothing else.

A file with any row that is not plain is read row by row instead. What stays in memory is a name a group and the numbers
of its rewards.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.readers.flat.duckdb_scan import Keys, scan_groups
from gradscope.rollouts.readers.parsing.grouping import Record, group_name
from gradscope.rollouts.readers.parsing.jsonl import COMPRESSED
from gradscope.rollouts.readers.parsing.tables import suffix_of
from gradscope.rollouts.types import Rollout, RolloutGroup

MIN_BYTES = 64 << 20
"""Logs below this are read row by row: it takes a few seconds at most, and keeps the text."""
_BATCH_BYTES = 512 << 20
"""Files of JSON lines that one query reads: each query waits for its slowest file, and progress is told in between."""
_EXPANSION = 10
"""What a compressed file is taken to hold, in its sizes on disk: rollouts of one prompt are alike and compress well."""
_MEMORY = "512MB"
"""What DuckDB may hold before it spills to a temporary folder."""

RowReader = Callable[[Path], Iterable[Record]]
"""A file's usable rows, for files that cannot be reduced; it also sets aside the rows that cannot be used."""


def is_large(files: Iterable[Path]) -> bool:
    """Whether files are worth a reduction: from ``MIN_BYTES`` on."""
    return _size(files) >= MIN_BYTES


def reduce_files(
    files: Sequence[Path], keys: Keys, read_file: RowReader, progress: ProgressCallback = no_progress
) -> pa.Table:
    """Reduce files to their groups.

    Args:
        files: Files of one log, in order.
        keys: What to group by.
        read_file: Reads the files that are not plain.
        progress: Told after each batch of files.

    Returns:
        One row a group: step, group, prompt, and a list of rollouts, each a structure with its rewards as ``"0"`` (the
        main one), ``"1"``, ... (null: there is none); by step, then by the first file of each.
    """
    with tempfile.TemporaryDirectory(prefix="gradscope-") as spill, _connect(spill) as connection:
        parts, others = _scan_all(connection, files, keys, progress)
        is_split = _has_split_groups(connection, parts)
        contradictory = _contradictory_files(connection, parts) if is_split else []
        if contradictory:
            parts = parts.filter(pc.invert(pc.is_in(parts["file"], value_set=pa.array(contradictory))))
        # In their order: the row reader names the first row that it sets aside for a reason.
        by_row = [_of_records(number, read_file(files[number]), keys) for number in sorted({*others, *contradictory})]
        whole = pa.concat_tables([parts, *by_row])
        return _merge(connection, whole) if is_split or by_row else _in_order(whole)


def to_groups(table: pa.Table, names: Sequence[str]) -> tuple[RolloutGroup, ...]:
    """Groups that hold nothing but rewards; rollouts of equal rewards are one object, without text or place.

    Args:
        table: As :func:`reduce_files` returns it.
        names: The columns of the rewards, the main one first.

    Returns:
        The groups in the order of the table, their rollouts by reward.
    """
    rollout_of = _Rollouts(names)
    prompts: dict[str, str] = {}
    groups = []
    for batch in table.to_batches(max_chunksize=1 << 14):
        steps, ids, prompt_ids = (batch[name].to_pylist() for name in ("step", "group", "prompt"))
        # A missing reward as infinity, which no reward is: so they can be sorted, and the missing come last.
        rewards = [pc.fill_null(column, math.inf).to_pylist() for column in batch["rewards"].flatten().flatten()]
        levels = list(zip(*rewards, strict=True))
        first = 0
        sizes = pc.list_value_length(batch["rewards"]).to_pylist()
        for step, group, prompt, size in zip(steps, ids, prompt_ids, sizes, strict=True):
            groups.append(
                RolloutGroup(
                    step=step,
                    group_id=group_name(step, group),
                    prompt_id=prompts.setdefault(prompt, prompt),
                    rollouts=tuple(rollout_of[level] for level in sorted(levels[first : first + size])),
                )
            )
            first += size
    return tuple(groups)


class _Rollouts(dict[tuple[float, ...], Rollout]):
    """The rollout of some rewards, made when it is first asked for."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, level: tuple[float, ...]) -> Rollout:
        rewards = {
            name: reward if math.isfinite(reward) else None for name, reward in zip(self._names, level, strict=True)
        }
        made = Rollout(
            group_id="", sample=0, row=0, prompt="", completion="", reward=rewards[self._names[0]], rewards=rewards
        )
        self[level] = made
        return made


def _connect(spill: str) -> duckdb.DuckDBPyConnection:
    options = {"memory_limit": _MEMORY, "temp_directory": spill, "threads": _num_cores()}
    connection = duckdb.connect(config={**options, "autoinstall_known_extensions": False})
    connection.execute("SET preserve_insertion_order = false")
    return connection


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _scan_all(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path], keys: Keys, progress: ProgressCallback
) -> tuple[pa.Table, list[int]]:
    schema = _schema(keys)
    # The empty tables that pyarrow makes are made from Python, for which it imports pandas.
    tables = [pa.Table.from_batches([], schema)]
    others: list[int] = []
    done = 0
    for batch in _batches(files):
        scanned = scan_groups(connection, batch, keys)
        tables += [table.cast(schema) for table in scanned.groups]
        others += scanned.others
        done += len(batch)
        progress(done, len(files), "files")
    return pa.concat_tables(tables), others


def _batches(files: Sequence[Path]) -> Iterator[dict[int, Path]]:
    batch: dict[int, Path] = {}
    for number, file in enumerate(files):
        # Only of JSON lines does a query read several: the columns of the other kinds are the file's own.
        if batch and not (_is_lines(file) and _is_lines(files[number - 1]) and _size(batch.values()) < _BATCH_BYTES):
            yield batch
            batch = {}
        batch[number] = file
    yield batch


def _is_lines(file: Path) -> bool:
    return suffix_of(file) in (".jsonl", ".ndjson", None)


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size * (_EXPANSION if file.suffix in COMPRESSED else 1) for file in files)


def _of_records(file: int, records: Iterable[Record], keys: Keys) -> pa.Table:
    prompts: dict[tuple[int, str], str] = {}
    rewards: dict[tuple[int, str], list[dict[str, float | None]]] = defaultdict(list)
    for record in records:
        key = (record.step, record.group)
        prompts.setdefault(key, record.prompt_id)
        further = {str(at): record.rewards[name] for at, name in enumerate(keys.rewards[1:], start=1)}
        rewards[key].append({"0": record.reward, **further})
    columns = {
        "file": [file] * len(prompts),
        "step": [step for step, _ in prompts],
        "group": [group for _, group in prompts],
        "prompt": list(prompts.values()),
        "rewards": list(rewards.values()),
    }
    return pa.table(columns, schema=_schema(keys))


def _schema(keys: Keys) -> pa.Schema:
    rollout = pa.struct([(str(at), pa.float64()) for at in range(len(keys.rewards))])
    return pa.schema(
        [
            ("file", pa.int64()),
            ("step", pa.int64()),
            ("group", pa.string()),
            ("prompt", pa.string()),
            ("rewards", pa.list_(rollout)),
        ]
    )


def _has_split_groups(connection: duckdb.DuckDBPyConnection, parts: pa.Table) -> bool:
    connection.register("parts", parts)
    split = 'SELECT 1 FROM parts GROUP BY step, "group" HAVING count(*) > 1 LIMIT 1'
    return bool(connection.sql(split).fetchall())


def _contradictory_files(connection: duckdb.DuckDBPyConnection, parts: pa.Table) -> list[int]:
    """The files in which a group has two prompts: the first row names it, and DuckDB keeps no order."""
    connection.register("parts", parts)
    twice = 'SELECT file FROM parts GROUP BY file, step, "group" HAVING count(*) > 1'
    return sorted({number for (number,) in connection.sql(twice).fetchall()})


def _in_order(parts: pa.Table) -> pa.Table:
    """The groups of the log, by step, from groups of which each lies in one file."""
    return parts.drop_columns(["file"]).sort_by("step")


def _merge(connection: duckdb.DuckDBPyConnection, parts: pa.Table) -> pa.Table:
    """The groups of the log, where some go on in another file: they become one, and its first row names the prompt."""
    connection.register("parts", parts)
    whole = (
        'SELECT step, "group", arg_min(prompt, file) AS prompt, flatten(list(rewards)) AS rewards '
        'FROM parts GROUP BY step, "group" ORDER BY step, min(file), "group"'
    )
    return connection.sql(whole).to_arrow_table()
