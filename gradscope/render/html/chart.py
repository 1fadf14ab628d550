"""Where the parts of a chart stand; ``templates/chart.html`` draws them as SVG, and the page's style colors them.

Lines differ in dash and marker, bars in pattern, and a legend above the drawing shows both: none needs its color. The
legend is text of the page, which wraps on a phone where a label inside the drawing would be cut off. The numbers are
data attributes of the drawing for the page's script, which shows them under its cursor.

A drawing of a thousand steps on eight hundred pixels has more points than can be seen. A long course is therefore drawn
in windows, each the mean of neighboring steps in a band from their least to their greatest value: no spike is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from gradscope.results.report import Chart, Series
from gradscope.say import non_finite_word

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MIN_SPAN = 1e-300  # numbers nearer than that are drawn as one: between them no digits are left for ticks
_MAX_STEP = 1e306  # steps wider than that have no rounder one above that is finite


class Scale(Struct, frozen=True, kw_only=True):
    """A linear scale."""

    low: float  # the number at ``start``
    high: float  # the number at ``end``, above ``low``
    start: float  # the coordinate of ``low`` in the drawing
    end: float  # the coordinate of ``high``

    def __call__(self, value: float) -> float:
        """The coordinate of a number; by halves, whose differences are finite whatever a log holds."""
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.end - self.start)


class Canvas(Struct, frozen=True, kw_only=True):
    """The size of a drawing in its own units, which a browser scales, and its margins."""

    width: float  # from edge to edge
    height: float  # from top to bottom
    left: float  # room for the ticks of the vertical axis; more where their labels are longer
    right: float  # room for half of the last tick's label
    top: float  # room for the vertical axis's name
    bottom: float  # room for ticks and the name of the horizontal axis
    letter: float  # width of a digit where the style sheet prints text largest, on a phone or on paper
    most_ticks: int  # labels that fit side by side below


def widened(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a scale that hold all numbers, and zero where it is near; never equal.

    >>> widened([1.0, 4.0]), widened([2.0, 2.0]), widened([100.0, 101.0])
    ((0.0, 4.0), (0.0, 2.0), (100.0, 101.0))
    """
    low, high = min(values), max(values)
    if 0 < low <= 0.5 * high or low == high > 0:
        low = 0.0
    if 0.5 * low <= high < 0 or low == high < 0:
        high = 0.0
    return (low, high) if high - low >= _MIN_SPAN else (low - 0.5, high + 0.5)


def ticks(low: float, high: float, *, max_ticks: int = 5) -> list[float]:
    """At most so many multiples of 1, 2, 2.5 or 5 times a power of ten between two ends, ascending, of 12 digits each.

    >>> ticks(0.0, 1.0), ticks(1.0, 60.0)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [20.0, 40.0, 60.0])
    """
    rough = high / max(max_ticks - 1, 1) - low / max(max_ticks - 1, 1)
    if rough > _MAX_STEP:
        return [0.0] if low <= 0.0 <= high else []
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [mark for n in range(first, last + 1) if abs((mark := float(f"{n * step:.12g}")) - n * step) <= 1e-8 * step]


def rounded(value: float) -> str:
    """A coordinate with at most one decimal, a twentieth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


MAX_POINTS = 160  # points of a line: five pixels each on a page of full width


class Window(Struct, frozen=True, kw_only=True):
    """Neighboring positions of a chart, one or more."""

    low: float  # the first position
    high: float  # the last
    start: int  # its first index among all positions
    end: int  # where the next one begins

    @property
    def middle(self) -> float:
        """Where it is drawn."""
        return (self.low + self.high) / 2

    @property
    def name(self) -> str:
        """Its position, or its first and last."""
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"


class Point(Struct, frozen=True, kw_only=True):
    """A line's values in a window."""

    value: float  # the mean of its finite values
    low: float  # the least of them
    high: float  # the greatest


def windows_of(chart: Chart) -> tuple[Window, ...]:
    """The positions of a chart over numbers, joined where there are more than :data:`MAX_POINTS`."""
    positions, width = chart.places, math.ceil(len(chart.places) / MAX_POINTS)
    starts = range(0, len(positions), width or 1)
    ends = [min(start + width, len(positions)) for start in starts]
    return tuple(
        Window(low=float(positions[start]), high=float(positions[end - 1]), start=start, end=end)
        for start, end in zip(starts, ends, strict=True)
    )


def points_of(values: Sequence[float | None], windows: Sequence[Window]) -> list[Point | None]:
    """One line in windows: a point each, None where it holds no finite value."""
    return [point_of(values[window.start : window.end]) for window in windows]


def point_of(values: Sequence[float | None]) -> Point | None:
    """The mean of the finite values, with their ends; None where there are none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return Point(value=math.fsum(finite) / len(finite), low=min(finite), high=max(finite)) if finite else None


_WIDTH, _RIGHT = 760.0, 80.0
_LETTER = 12.2  # width of a letter where the style sheet prints text largest, on a phone
_ROW, _BAR = 23.0, 14.0
_MAX_CHARACTERS = 24


class Bar(Struct, frozen=True, kw_only=True):
    """One of several horizontal bars, and the number at its end."""

    name: str  # its name, cut where it is long
    value: float
    top: float
    start: float  # its left end
    width: float

    height = _BAR

    @property
    def middle(self) -> float:
        """The height of its texts."""
        return self.top + _BAR / 2


class Bars(Struct, frozen=True, kw_only=True):
    """A chart of names and one series."""

    rows: tuple[Bar, ...]
    scale: Scale
    names_end: float  # where the names end, on the left
    width: float
    height: float  # of the bars; their axis has its name below


def bars_of(chart: Chart) -> Bars:
    """The bars of a chart, a row a name."""
    values = [value or 0.0 for value in chart.series[0].values]
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    names = [
        name if len(name) <= _MAX_CHARACTERS else f"{name[: _MAX_CHARACTERS - 1]}…" for name in map(str, chart.places)
    ]
    left = _LETTER * max(map(len, names)) + 8.0
    start = left + (_RIGHT + 8.0 if low < 0 else 0.0)
    scale = Scale(low=low, high=high if high > low else low + 1.0, start=start, end=_WIDTH - _RIGHT)
    zero, ends = scale(0.0), map(scale, values)
    rows = tuple(
        Bar(name=name, value=value, top=8.0 + _ROW * row, start=min(zero, end), width=abs(end - zero))
        for row, (name, value, end) in enumerate(zip(names, values, ends, strict=True))
    )
    return Bars(rows=rows, scale=scale, names_end=left - 8.0, width=_WIDTH, height=_ROW * len(values) + 12.0)


FULL = Canvas(width=760.0, height=258.0, left=72.0, right=24.0, top=34.0, bottom=54.0, letter=12.7, most_ticks=8)
"""As wide as the page."""
CARD = Canvas(width=280.0, height=140.0, left=36.0, right=12.0, top=12.0, bottom=34.0, letter=7.0, most_ticks=4)
"""One of several side by side, where the title is the name of the vertical axis, too."""
_FEW = 10  # positions that may be ticks themselves
_MAX_MARKERS = 60
_NUM_STYLES = 4


class DrawnSeries(Struct, frozen=True, kw_only=True):
    """One line of a chart, or one layer of its bars."""

    name: str
    numbers: str  # its values, which the page's script shows under its cursor
    bands: tuple[str, ...] = ()  # the outlines of the ranges of its windows
    lines: tuple[str, ...] = ()  # its points, in pieces
    marks: tuple[tuple[float, float], ...] = ()
    bars: str = ""  # the outline of all its bars


class Drawing(Struct, frozen=True, kw_only=True):
    """A chart of lines or stacked bars over a number."""

    canvas: Canvas
    windows: Sequence[Window]
    to_x: Scale
    to_y: Scale
    across_ticks: Sequence[float]
    up_ticks: Sequence[float]
    drawn: tuple[DrawnSeries, ...]
    not_finite: tuple[tuple[float, float, str], ...]  # where a value is not finite, and its words


def drawing_of(chart: Chart, *, small: bool = False) -> Drawing:
    """The scales of a chart, and its lines or layers on them."""
    canvas, windows = CARD if small else FULL, windows_of(chart)
    half = 0.5 if chart.kind == "stack" else 0.0
    low, high = windows[0].low - half, windows[-1].high + half
    values = [value for series in chart.series for value in series.values if value is not None]
    bottom, top = chart.y_range or widened(list(filter(math.isfinite, values)) or [0.0, 1.0])
    up_ticks = ticks(bottom, top)
    to_x = Scale(
        low=low if low < high else low - 1,
        high=high if low < high else high + 1,
        # so far to the right that no label of a tick is cut off
        start=max(canvas.left, canvas.letter * max((len(f"{value:g}") for value in up_ticks), default=0) + 8.0),
        end=canvas.width - canvas.right,
    )
    to_y = Scale(low=bottom, high=top, start=canvas.height - canvas.bottom, end=canvas.top)
    return Drawing(
        canvas=canvas,
        windows=windows,
        to_x=to_x,
        to_y=to_y,
        across_ticks=_step_ticks(chart, to_x, canvas),
        up_ticks=up_ticks,
        drawn=tuple((_layers if chart.kind == "stack" else _lines)(chart, windows, to_x, to_y)),
        not_finite=tuple(  # marks at the edge: above, or below for -infinity
            (
                to_x(float(step)),
                to_y.start - 3 if value == -math.inf else to_y.end + 8,
                f"{series.name}: {non_finite_word(value)} at {step}",
            )
            for series in (chart.series if chart.kind == "lines" else ())
            for step, value in zip(chart.places, series.values, strict=True)
            if value is not None and not math.isfinite(value)
        ),
    )


def kind_of_series(series: Series, index: int, chart: Chart) -> str:
    """The class of a line or a layer of bars: by its index, overridden by the color of its kind."""
    if chart.kind == "stack":
        return series.kind or f"b{index % 3}"
    style = f"s{index % _NUM_STYLES}"
    return style if series.kind is None else f"{style} {series.kind}"


def _step_ticks(chart: Chart, to_x: Scale, canvas: Canvas) -> list[float]:
    """The positions themselves where they are few and far apart, else round integers."""
    steps = [float(step) for step in chart.places[: _FEW + 1]]
    gaps = [after - before for before, after in pairwise(map(to_x, steps))]
    label = canvas.letter * (1 + max(len(f"{step:g}") for step in steps))
    if len(steps) <= _FEW and min(gaps, default=label) >= label:
        return steps
    return [value for value in ticks(to_x.low, to_x.high, max_ticks=canvas.most_ticks) if value == int(value)]


def _lines(chart: Chart, windows: Sequence[Window], to_x: Scale, to_y: Scale) -> Iterator[DrawnSeries]:
    """Lines broken where a value is missing or not finite: a gap is not drawn as if it were known."""
    for series in chart.series:
        points = points_of(series.values, windows)
        pieces: list[list[tuple[float, Point]]] = [[]]
        for window, point in zip(windows, points, strict=True):
            if point is not None:
                pieces[-1].append((window.middle, point))
            elif pieces[-1]:
                pieces.append([])
        pieces = [piece for piece in pieces if piece]
        has_band = any(point is not None and point.low < point.high for point in points)
        is_marked = sum(map(len, pieces)) <= _MAX_MARKERS or any(len(piece) == 1 for piece in pieces)
        yield DrawnSeries(
            name=series.name,
            numbers=_numbers(points),
            bands=tuple(  # from the least values forth to the greatest back
                coordinates([*((x, p.low) for x, p in piece), *((x, p.high) for x, p in reversed(piece))], to_x, to_y)
                for piece in pieces
                if has_band and len(piece) > 1
            ),
            lines=tuple(coordinates([(x, point.value) for x, point in piece], to_x, to_y) for piece in pieces),
            marks=tuple((to_x(x), to_y(point.value)) for piece in pieces for x, point in piece) if is_marked else (),
        )


def _numbers(points: Sequence[Point | None]) -> str:
    return " ".join("-" if point is None else f"{point.value:.4g}" for point in points)


def coordinates(points: Iterable[tuple[float, float]], to_x: Scale, to_y: Scale) -> str:
    """The points of a line as an ``svg`` element has them."""
    return " ".join(f"{rounded(to_x(x))},{rounded(to_y(y))}" for x, y in points)


def _layers(chart: Chart, windows: Sequence[Window], to_x: Scale, to_y: Scale) -> Iterator[DrawnSeries]:
    """Bars of shares on top of each other."""
    gaps = [after.middle - before.middle for before, after in pairwise(windows)]
    width = max(1.0, 0.8 * (to_x(min(gaps, default=1.0)) - to_x(0.0)))
    floor = [0.0] * len(windows)
    for series in chart.series:
        points, bars = points_of(series.values, windows), []
        for index, (window, point) in enumerate(zip(windows, points, strict=True)):
            if point is None or not point.value:
                continue
            left, below, above = (to_x(window.middle) - width / 2, to_y(floor[index]), to_y(floor[index] + point.value))
            bars.append(f"M{rounded(left)},{rounded(below)}h{rounded(width)}V{rounded(above)}h{rounded(-width)}z")
            floor[index] += point.value
        yield DrawnSeries(name=series.name, numbers=_numbers(points), bars="".join(bars))
