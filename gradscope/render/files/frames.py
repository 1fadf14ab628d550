"""The tidy tables of a result as data frames: the rows and columns of its CSV files, as Arrow or pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.render.files.csv_tables import Row, tidy_tables
from gradscope.render.registry import spec_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def tables_of(result: object) -> tuple[str, ...]:
    """Names of the tables of a result that have rows, in the order of its CSV files, whose stems hold the command's."""
    return tuple(_rows_by_table(result))


def _rows_by_table(result: object) -> dict[str, list[Row]]:
    prefix = f"{spec_of(result).name}_"
    return {stem.removeprefix(prefix): rows for stem, rows in tidy_tables(result).items()}


def arrow_of(result: object, table: str | None = None) -> pyarrow.Table:
    """One table of a result.

    Args:
        result: What a command found.
        table: One of :func:`tables_of`; None: the first.

    Returns:
        A row per thing measured, a column per number. What a trainer logged as NaN or infinity is that number; a column
        of numbers and words is text.

    Raises:
        UsageError: The result has no such table, or none with rows.
    """
    import pyarrow

    tables = _rows_by_table(result)
    wanted = next(iter(tables), None) if table is None else table
    if wanted not in tables:
        asked = "no table" if table is None else f"no table {table!r}"
        hint = f"There are: {', '.join(tables)}." if tables else None
        raise UsageError(f"This {type(result).__name__} has {asked} with rows.", hint=hint)
    rows = tables[wanted]
    columns = dict.fromkeys(column for row in rows for column in row)
    estimates = {column.removesuffix("_undefined") for column in columns if column.endswith("_undefined")}
    kinds = {f"{name}{end}": pyarrow.float64() for name in estimates for end in ("", "_low", "_high")}
    kinds |= {f"{name}_undefined": pyarrow.string() for name in estimates}
    cells = {column: _values([row.get(column) for row in rows]) for column in columns}
    return pyarrow.table({column: pyarrow.array(values, type=kinds.get(column)) for column, values in cells.items()})


def pandas_of(result: object, table: str | None = None) -> pandas.DataFrame:
    """The same as :func:`arrow_of`, as pandas.

    Returns:
        The table; an absent number is NaN.

    Raises:
        MissingDependencyError: pandas is not installed.
        UsageError: The result has no such table, or none with rows.
    """
    try:
        import pandas  # noqa: F401  # what Arrow would import, with an error of its own
    except ImportError as error:
        raise MissingDependencyError(
            "to_pandas() needs pandas, which is not installed.", hint="Use to_arrow(), or: pip install pandas"
        ) from error
    frame: pandas.DataFrame = arrow_of(result, table).to_pandas()
    return frame


def _values(values: Sequence[Any]) -> list[Any]:
    """The cells of a column, all of one kind."""
    kinds = {_kind_of(value) for value in values if value is not None}
    if kinds == {float, str} and all(value in _NOT_FINITE for value in values if isinstance(value, str)):
        return [_NOT_FINITE[value] if isinstance(value, str) else value for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return list(values)


def _kind_of(value: float | str) -> type:
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float
