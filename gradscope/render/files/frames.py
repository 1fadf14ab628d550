"""The tidy tables of a result as data frames: the rows and columns of its CSV files, as Arrow or pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.render.files.csv_tables import tidy_tables
from gradscope.render.registry import spec_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def table_names(result: object) -> tuple[str, ...]:
    """The tables of a result that have rows, in the order of its CSV files; without the command's name in front."""
    prefix = f"{spec_of(result).name}_"
    return tuple(stem.removeprefix(prefix) for stem in tidy_tables(result))


def arrow_table(result: object, name: str | None = None) -> pyarrow.Table:
    """One table of a result.

    Args:
        result: What a command found.
        name: One of :func:`table_names`; None: the first.

    Returns:
        A row per thing measured, a column per number. What a trainer logged as NaN or infinity is that number; a column
        of numbers and words is text.

    Raises:
        UsageError: The result has no such table, or none with rows.
    """
    import pyarrow

    names = table_names(result)
    wanted = names[0] if name is None and names else name
    if wanted not in names:
        kind = type(result).__name__
        asked = (
            f"This {kind} has no table with rows" if name is None else f"This {kind} has no table {name!r} with rows"
        )
        raise UsageError(f"{asked}.", hint=f"There are: {', '.join(names)}." if names else None)
    rows = tidy_tables(result)[f"{spec_of(result).name}_{wanted}"]
    columns = dict.fromkeys(column for row in rows for column in row)
    estimates = {column.removesuffix("_undefined") for column in columns if column.endswith("_undefined")}
    kinds = {f"{name}{end}": pyarrow.float64() for name in estimates for end in ("", "_low", "_high")}
    kinds |= {f"{name}_undefined": pyarrow.string() for name in estimates}
    cells = {column: _values([row.get(column) for row in rows]) for column in columns}
    return pyarrow.table({column: pyarrow.array(values, type=kinds.get(column)) for column, values in cells.items()})


def pandas_frame(result: object, name: str | None = None) -> pandas.DataFrame:
    """The same as :func:`arrow_table`, as pandas.

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
    frame: pandas.DataFrame = arrow_table(result, name).to_pandas()
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
