"""Results as tidy tables: one CSV per table, one row per thing measured, one column per number.

An estimate becomes five columns (``x``, ``x_low``, ``x_high``, ``x_num_units``, ``x_undefined``), a mapping one column
per key (``logged.grad_norm``). Sequences that are no table of their own, such as singular values, are left to the
arrays file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from gradscope.render.registry import spec_of
from gradscope.results.envelope import to_jsonable
from gradscope.results.lazy_rows import LazyRows

Row = dict[str, Any]

_ESTIMATE_KEYS = {"value", "low", "high", "num_units", "undefined"}


def tidy_tables(result: object) -> dict[str, list[Row]]:
    """The tables of a result, by file stem; empty ones are left out."""
    spec = spec_of(result)
    tables = {
        f"{spec.name}_{name}": rows[:] if isinstance(rows, LazyRows) else [_flat(record) for record in rows]
        for name, rows in spec.csv(result).items()
    }
    return {stem: rows for stem, rows in tables.items() if rows}


def render_csv(rows: Sequence[Row]) -> str:
    """Rows, which may differ in columns, as CSV text with a header; an absent or null value is an empty cell."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _flat(record: Any) -> Row:
    flat: Row = {}
    for name, value in to_jsonable(record).items():
        flat |= _columns(name, value)
    return flat


def _columns(name: str, value: Any) -> Row:
    if isinstance(value, Mapping):
        if set(value) == _ESTIMATE_KEYS:
            return {name if key == "value" else f"{name}_{key}": value[key] for key in value}
        return {column: item for key in value for column, item in _columns(f"{name}.{key}", value[key]).items()}
    if name == "shape":
        num_rows, num_columns = value or (None, None)
        return {"num_rows": num_rows, "num_columns": num_columns}
    if isinstance(value, list):
        return {}
    return {name: value}
