"""A log with a row a rollout as columns, for a reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from gradscope.rollouts.readers.flat.records import FlatColumns, flat_records, prompt_id_of, prompt_text_id
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import Row, is_untyped, read_rows, suffix_of
from gradscope.rollouts.readers.scan.line_columns import LineColumns, finite, member, numeric, step_number, text
from gradscope.rollouts.readers.scan.reduction import ColumnLog
from gradscope.rollouts.readers.scan.table_files import CellColumns

_TIMES = {("generation_seconds",): 1.0, ("timing", "llm_time"): 1.0, ("timing", "generation_ms"): 1e-3}
"""As ``generation_seconds`` takes them, in its order: keys, and seconds a unit."""


def column_log(
    files: Sequence[Path], columns: FlatColumns, present: Sequence[str], quarantine: QuarantineLog
) -> ColumnLog:
    """The columns of a log.

    Args:
        files: What it consists of, in order.
        columns: What their columns are.
        present: All names of columns.
        quarantine: Takes what is set aside.

    Returns:
        The log.
    """
    lines, cells = _line_columns(columns, present), _cell_columns(columns)

    def declared(file: Path) -> LineColumns | CellColumns | None:
        match suffix_of(file):
            case ".json":
                return None
            case ".parquet" | ".csv":
                return cells
            case _:
                return lines

    def records(file: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[Record]:
        return flat_records(rows, columns, quarantine, from_text=is_untyped(file))

    return ColumnLog(
        files=files,
        columns=lines.columns,
        declared=declared,
        rows=read_rows,
        records=records,
        quarantine=quarantine,
    )


def _line_columns(columns: FlatColumns, present: Sequence[str]) -> LineColumns:
    names = columns.names
    paths: list[str] = []

    def cell(*keys: str) -> str:
        path = member(*keys)
        if path not in paths:
            paths.append(path)
        return f"c[{paths.index(path) + 1}]"

    reward = numeric(cell(names.reward or ""))
    prompt = cell(names.prompt_id or names.prompt or columns.key)
    plain = [f"{prompt} IS NOT NULL AND {prompt} <> 'null'"]
    if columns.by_prompt:
        plain.append(f"{prompt} <> '\"\"'")
    if names.advantage is not None:
        plain.append(f"coalesce({cell(names.advantage)} NOT IN ('NaN', 'Infinity', '-Infinity'), true)")
    times = [_seconds(numeric(cell(*keys)), unit) for keys, unit in _TIMES.items() if keys[0] in present]
    return LineColumns(
        step="0" if names.step is None else step_number(cell(names.step)),
        group=f"hash({prompt})::VARCHAR" if columns.by_prompt else text(cell(columns.key)),
        group_is_prompt=columns.by_prompt,
        prompt=(prompt,),
        prompt_id=lambda row: prompt_id_of(row, columns),
        reward=reward,
        rewards={name: numeric(cell(name)) for name in columns.rewards},
        further={
            **({"seconds": f"coalesce({', '.join(times)})"} if times else {}),
            **({} if names.advantage is None else {"advantage": numeric(cell(names.advantage))}),
        },
        sample=None if columns.sample is None else text(cell(columns.sample)),
        plain=" AND ".join(plain),
        paths=tuple(paths),
    )


def _seconds(cell: str, unit: float) -> str:
    return f"CASE WHEN {cell} >= 0 THEN {finite(cell)} * {unit} END"


def _cell_columns(columns: FlatColumns) -> CellColumns | None:
    names = columns.names
    if columns.sample is not None:
        return None
    from_text = names.prompt_id is None and names.prompt is not None
    prompt_id: Callable[[str], str] = prompt_text_id if from_text else str
    return CellColumns(
        reward=names.reward or "",
        rewards=columns.rewards,
        step=names.step,
        group=columns.key,
        prompt=names.prompt_id or names.prompt or columns.key,
        prompt_id=prompt_id,
        group_is_prompt=columns.by_prompt,
    )
