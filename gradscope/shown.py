"""How a result shows itself in Python: one line, a notebook's cell, data frames, figures.

Results are data and know no output. The modules that show them are above them, and are named once, by the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.figure import Figure


class Views(Protocol):
    """The interface of the module that shows results."""

    def line_of(self, result: object) -> str:
        """The answer in one line."""

    def html_of(self, result: object) -> str:
        """The answer as a part of a page."""

    def tidy_tables(self, result: object) -> Mapping[str, object]:
        """Its tables that have rows, by name."""

    def arrow_of(self, result: object, table: str | None) -> pyarrow.Table:
        """One of these tables, as Arrow."""

    def pandas_of(self, result: object, table: str | None) -> pandas.DataFrame:
        """One of these tables, as pandas."""

    def draw_figures(self, result: object) -> dict[str, Figure]:
        """Its figures by name."""

    def figure_of(self, result: object, figure: str | None) -> Figure:
        """One of these figures."""


_loaders: list[Callable[[], Views]] = []


def show_by(load: Callable[[], Views]) -> None:
    """Name the module that shows results; it is loaded when the first one is shown."""
    _loaders[:] = [load]


def _views() -> Views:
    return _loaders[0]()


class Shown:
    """A result of a command."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The type, its sources, and the answer in one sentence."""
        return _views().line_of(self)

    def _repr_html_(self) -> str:
        """The display in a notebook: the sections of the report's page that this result answers."""
        return _views().html_of(self)

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the tables that have rows, the main one first: those that ``--output`` writes as CSV."""
        return tuple(_views().tidy_tables(self))

    def to_arrow(self, table: str | None = None) -> pyarrow.Table:
        """One table as Arrow: a row per thing measured, a column per number.

        An estimate becomes five columns (``x``, ``x_low``, ``x_high``, ``x_num_units``, ``x_undefined``), a mapping
        one column per key (``logged.grad_norm``).

        Args:
            table: One of ``table_names``; None: the first.

        Returns:
            The table. A column that mixes numbers and words is text; values that a trainer logged as NaN or infinity
            are that number.

        Raises:
            UsageError: There is no such table.
        """
        return _views().arrow_of(self, table)

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """The same as :meth:`to_arrow`, as pandas.

        Args:
            table: One of ``table_names``; None: the first.

        Returns:
            The table; an absent number is NaN.

        Raises:
            UsageError: There is no such table.
            MissingDependencyError: pandas is not installed.
        """
        return _views().pandas_of(self, table)

    @property
    def figure_names(self) -> tuple[str, ...]:
        """Names of the figures, the main one first: those that ``--output`` writes; none where there is only text."""
        return tuple(_views().draw_figures(self))

    def plot(self, figure: str | None = None) -> Figure:
        """One figure; ``savefig`` writes it.

        Args:
            figure: One of ``figure_names``; None: the first.

        Returns:
            A matplotlib Figure, which no window and no ``pyplot`` holds.

        Raises:
            UsageError: There is no such figure, or none at all.
        """
        return _views().figure_of(self, figure)
