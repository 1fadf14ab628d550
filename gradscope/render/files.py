"""The files of a result: its JSON document, tidy tables as CSV, Arrow or pandas, arrays, and figures.

A table has one row a thing measured and one column a number. An estimate becomes five columns (``x``, ``x_low``,
``x_high``, ``x_num_units``, ``x_undefined``), a mapping one column a key (``logged.grad_norm``). Sequences that are no
table of their own, such as singular values, are left to the arrays file.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gradscope.catalog.lookup import definitions
from gradscope.errors import MissingDependencyError, UsageError
from gradscope.render.registry import draw_figures, load, metrics_of, spec_of
from gradscope.results.envelope import LazyRows, build_document, render_json, to_jsonable
from gradscope.writing import atomic_write, repeatable

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from gradscope.results.rank import RankReport


def notes_of(result: object) -> tuple[str, ...]:
    """Caveats of a result's gradients; none where no gradient was computed."""
    notes = getattr(result, "engine", {}).get("notes")
    return tuple(map(str, notes)) if isinstance(notes, list) else ()


def document_of(result: object) -> dict[str, Any]:
    """A result in its envelope: what ``--json`` prints and ``--output`` writes."""
    spec = spec_of(result)
    sources = spec.sources(result)
    files = [file for source in sources for file in source.files]
    digests = {file: digest for source in sources for file, digest in zip(source.files, source.digests, strict=False)}
    names = metrics_of(spec.name) if spec.definitions is None else spec.definitions(result)
    return build_document(
        spec.name, result, files=dict.fromkeys(files), definitions=definitions(*dict.fromkeys(names)), digests=digests
    )


Row = dict[str, Any]

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_ESTIMATE_KEYS = {"value", "low", "high", "num_units", "undefined"}


def tidy_tables(result: object) -> dict[str, list[Row]]:
    """The tables of a result, by name; empty ones are left out."""
    tables: dict[str, list[Row]] = {}
    for name, records in spec_of(result).csv(result).items():
        if isinstance(records, LazyRows):
            tables[name] = records[:]
            continue
        cells = (to_jsonable(record).items() for record in records)
        tables[name] = [{column: cell for pair in row for column, cell in _columns(*pair).items()} for row in cells]
    return {name: rows for name, rows in tables.items() if rows}


def render_csv(rows: Sequence[Row]) -> str:
    """Rows, which may differ in columns, as CSV with a header: null is an empty cell, a formula is text."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines: list[str] = []
    # with this terminator a carriage return within a cell is quoted, too
    writer = csv.writer(SimpleNamespace(write=lambda line: lines.append(line[:-2])), lineterminator="\r\n")
    writer.writerow(map(_inert, columns))
    writer.writerows([_inert(row.get(column)) for column in columns] for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _inert(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and cell.startswith(_FORMULA) and cell not in _NOT_FINITE
    return f"'{cell}" if is_formula else cell


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


_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def arrow_of(result: object, table: str | None = None) -> pyarrow.Table:
    """A table of a result, None: the first; NaN and infinity are numbers, a column of numbers and words text."""
    import pyarrow

    tables = tidy_tables(result)
    wanted = next(iter(tables), None) if table is None else table
    if wanted not in tables:
        lacking = "no table" if table is None else f"no table {table!r}"
        hint = f"There are: {', '.join(tables)}." if tables else None
        raise UsageError(f"This {type(result).__name__} has {lacking} with rows.", hint=hint)
    rows = tables[wanted]
    columns = dict.fromkeys(column for row in rows for column in row)
    estimates = {column.removesuffix("_undefined") for column in columns if column.endswith("_undefined")}
    kinds = {f"{name}{end}": pyarrow.float64() for name in estimates for end in ("", "_low", "_high")}
    kinds |= {f"{name}_undefined": pyarrow.string() for name in estimates}
    cells = {column: _values([row.get(column) for row in rows]) for column in columns}
    return pyarrow.table({column: pyarrow.array(values, type=kinds.get(column)) for column, values in cells.items()})


def pandas_of(result: object, table: str | None = None) -> pandas.DataFrame:
    """The same as :func:`arrow_of`, as pandas; an absent number is NaN."""
    try:
        import pandas  # noqa: F401  # Arrow would import it, with an error of its own
    except ImportError as error:
        raise MissingDependencyError(
            "to_pandas() needs pandas, which is not installed.", hint="Use to_arrow(), or: pip install pandas"
        ) from error
    frame: pandas.DataFrame = arrow_of(result, table).to_pandas()
    return frame


def _values(values: Sequence[Any]) -> list[Any]:
    """The cells of a column, all of one kind."""
    kinds = {
        (bool if isinstance(value, bool) else str if isinstance(value, str) else float)
        for value in values
        if value is not None
    }
    if kinds == {float, str} and all(value in _NOT_FINITE for value in values if isinstance(value, str)):
        return [_NOT_FINITE[value] if isinstance(value, str) else value for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return list(values)


def write_files(result: object, document: Mapping[str, Any], folder: Path) -> None:
    """Writes a result into an existing folder: document, tables, arrays, figures."""
    from gradscope.render.figures.style import save_figure

    spec = spec_of(result)
    atomic_write(folder / f"{spec.name}.json", render_json(document))
    for name, rows in tidy_tables(result).items():
        atomic_write(folder / f"{spec.name}_{name}.csv", render_csv(rows))
    if spec.arrays is not None:
        load(spec.arrays)(result, folder)
    for stem, figure in draw_figures(result).items():
        save_figure(figure, folder / stem)


def write_spectra(report: RankReport, folder: Path) -> None:
    """Writes the singular values of each spectrum under a name that says whose they are; no file without spectra."""
    import numpy as np  # here, so that help starts without it
    from safetensors.numpy import save

    arrays = {}
    for spectrum in report.spectra:
        label = spectrum.label
        subject, samples = label.tensor or label.group_id or "step", "-".join(map(str, label.samples))
        parts = (f"{label.step:05d}", label.advantage, f"G{label.group_size}", subject, samples)
        arrays["/".join(filter(None, parts))] = np.asarray(spectrum.singular_values)
    if arrays:
        metadata = {"rows": report.rows, "values": "singular values, descending"}
        atomic_write(folder / "rank_spectra.safetensors", repeatable(save(arrays, metadata=metadata)))
