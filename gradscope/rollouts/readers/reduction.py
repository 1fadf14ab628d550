"""Flat logs of any size reduced to their groups, out of core: what degeneracy and pass@k need, and nothing else.

A file with any row that is not plain is read row by row instead. What stays in memory is a name, and the levels of the
rewards with their counts, a group.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.readers.grouping import Record, group_name
from gradscope.rollouts.readers.scan import Keys, scan_groups
from gradscope.rollouts.readers.tables import suffix_of
from gradscope.rollouts.types import Rollout, RolloutGroup

MIN_BYTES = 64 << 20
"""Logs below this are read row by row: it takes a second at most, and keeps the text."""
_BATCH_BYTES = 128 << 20
"""Files of JSON lines that one query reads, by their size on disk."""
_MEMORY = "512MB"
"""What DuckDB may hold before it spills to a temporary folder."""
_SCHEMA = pa.schema(
    [
        ("file", pa.int64()),
        ("step", pa.int64()),
        ("group", pa.string()),
        ("prompt", pa.string()),
        ("levels", pa.list_(pa.float64())),
        ("counts", pa.list_(pa.int64())),
    ]
)

RowReader = Callable[[Path], Iterable[Record]]
"""A file's usable rows, for files that cannot be reduced; it also sets aside the rows that cannot be used."""


def is_large(files: Iterable[Path]) -> bool:
    """Whether files are worth a reduction.

    Args:
        files: Existing files.

    Returns:
        True from ``MIN_BYTES`` on, as they lie on disk.
    """
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
        One row a group: step, group, prompt, the levels of its rewards (null: rows without one) and how many rollouts
        have each; by step, then by the first file of each.
    """
    with tempfile.TemporaryDirectory(prefix="gradscope-") as spill, _connect(spill) as connection:
        parts, others = _scan_all(connection, files, keys, progress)
        # In their order: the row reader names the first row that it sets aside for a reason.
        parts += [_of_records(number, read_file(files[number])) for number in sorted(others)]
        return _merge(connection, pa.concat_tables(parts))


def to_groups(table: pa.Table, reward_name: str) -> tuple[RolloutGroup, ...]:
    """Groups that hold nothing but rewards; rollouts of one reward are one object, without text or place.

    Args:
        table: As :func:`reduce_files` returns it.
        reward_name: The reward's column.

    Returns:
        The groups in the order of the table.
    """
    levels: dict[float | None, Rollout] = {}
    prompts: dict[str, str] = {}
    groups = []
    for batch in table.to_batches(max_chunksize=1 << 14):
        cells = (batch.column(name).to_pylist() for name in _SCHEMA.names[1:])
        for step, group, prompt, found, counts in zip(*cells, strict=True):
            rollouts = [
                levels.get(reward) or levels.setdefault(reward, _bare(reward, reward_name))
                for reward, count in sorted(zip(found, counts, strict=True), key=_by_reward)
                for _ in range(count)
            ]
            groups.append(
                RolloutGroup(
                    step=step,
                    group_id=group_name(step, group),
                    prompt_id=prompts.setdefault(prompt, prompt),
                    rollouts=tuple(rollouts),
                )
            )
    return tuple(groups)


def _connect(spill: str) -> duckdb.DuckDBPyConnection:
    options = {"memory_limit": _MEMORY, "temp_directory": spill, "threads": _num_cores()}
    connection = duckdb.connect(config={**options, "autoinstall_known_extensions": False})
    connection.execute("SET preserve_insertion_order = false")
    return connection


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _scan_all(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path], keys: Keys, progress: ProgressCallback
) -> tuple[list[pa.Table], list[int]]:
    found: list[pa.Table] = []
    others: list[int] = []
    done = 0
    for batch in _batches(files):
        scanned = scan_groups(connection, batch, keys)
        found += [table.cast(_SCHEMA) for table in scanned.groups]
        others += scanned.others
        done += len(batch)
        progress(done, len(files), "files")
    return found, others


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
    return sum(file.stat().st_size for file in files)


def _of_records(file: int, records: Iterable[Record]) -> pa.Table:
    prompts: dict[tuple[int, str], str] = {}
    rewards: dict[tuple[int, str], Counter[float | None]] = defaultdict(Counter)
    for record in records:
        key = (record.step, record.group)
        prompts.setdefault(key, record.prompt_id)
        rewards[key][record.reward] += 1
    columns = {
        "file": [file] * len(prompts),
        "step": [step for step, _ in prompts],
        "group": [group for _, group in prompts],
        "prompt": list(prompts.values()),
        "levels": [list(found) for found in rewards.values()],
        "counts": [list(found.values()) for found in rewards.values()],
    }
    return pa.table(columns, schema=_SCHEMA)


def _merge(connection: duckdb.DuckDBPyConnection, parts: pa.Table) -> pa.Table:
    """Groups that go on in another file become one; its first row, there, names their prompt.

    Args:
        connection: A DuckDB connection.
        parts: The groups of each file.

    Returns:
        The groups of the log.
    """
    connection.register("parts", parts)
    is_split = 'SELECT 1 FROM parts GROUP BY step, "group" HAVING count(*) > 1 LIMIT 1'
    if not connection.sql(is_split).fetchall():
        whole = 'SELECT step, "group", prompt, levels, counts FROM parts ORDER BY step, file, "group"'
    else:
        whole = (
            'SELECT step, "group", arg_min(prompt, file) AS prompt, flatten(list(levels)) AS levels, '
            'flatten(list(counts)) AS counts FROM parts GROUP BY step, "group" ORDER BY step, min(file), "group"'
        )
    return connection.sql(whole).to_arrow_table()


def _by_reward(level: tuple[float | None, int]) -> tuple[bool, float]:
    reward, _ = level
    return reward is None, reward or 0.0


def _bare(reward: float | None, name: str) -> Rollout:
    return Rollout(group_id="", sample=0, row=0, prompt="", completion="", reward=reward, rewards={name: reward})
