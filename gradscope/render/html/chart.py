"""Charts as inline SVG: colors come from the page's style, so light, dark and print need no second drawing.

Lines differ in dash and marker, bars in pattern, and a legend above the drawing shows both: none needs its color. The
legend is text of the page, which wraps on a phone where a label inside the drawing would be cut off. The numbers are
data attributes of the drawing for the page's script, which shows them under its cursor.

A drawing of a thousand steps on eight hundred pixels has more points than can be seen. A long course is therefore drawn
in windows, each the mean of neighboring steps in a band from their least to their greatest value: no spike is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from gradscope.render.words import plain
from gradscope.results.report import Chart, Series
from gradscope.say import non_finite_word

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LEAST = 1e-300  # numbers nearer than that are drawn as one: between them no digits are left for ticks
_MOST = 1e306  # steps wider than that have no rounder one above that is finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear scale."""

    low: float  # the number at ``start``
    high: float  # the number at ``end``, above ``low``
    start: float  # the coordinate of ``low`` in the drawing
    end: float  # the coordinate of ``high``

    def __call__(self, value: float) -> float:
        """The coordinate of a number; by halves, whose differences are finite whatever a log holds."""
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The size of a drawing in its own units, which a browser scales, and its margins."""

    width: float  # from edge to edge
    height: float  # from top to bottom
    left: float  # room for the ticks of the vertical axis; more where their labels are longer
    right: float  # room for half of the last tick's label
    top: float  # room for the vertical axis's name
    bottom: float  # room for ticks and the name of the horizontal axis
    letter: float  # width of a digit where the style sheet prints text largest, on a phone or on paper
    most_ticks: int  # labels that fit side by side below

    def room_left(self, labels: Sequence[str]) -> float:
        """Where the drawing begins, so that none of these labels is cut off."""
        return max(self.left, self.letter * max(map(len, labels), default=0) + 8.0)


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
    return (low, high) if high - low >= _LEAST else (low - 0.5, high + 0.5)


def ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """At most so many multiples of 1, 2, 2.5 or 5 times a power of ten between two ends, ascending.

    >>> ticks(0.0, 1.0), ticks(1.0, 60.0)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [20.0, 40.0, 60.0])
    """
    rough = high / max(most - 1, 1) - low / max(most - 1, 1)
    if rough > _MOST:
        return [0.0] if low <= 0.0 <= high else []
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{multiple * step:.12g}") for multiple in range(first, last + 1)]


def rounded(value: float) -> str:
    """A coordinate with at most one decimal, a twentieth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


MOST_POINTS = 160  # points of a line: five pixels each on a page of full width


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A line's values in a window."""

    value: float  # the mean of its finite values
    low: float  # the least of them
    high: float  # the greatest


def windows_of(chart: Chart) -> tuple[Window, ...]:
    """The positions of a chart over numbers, joined where there are more than :data:`MOST_POINTS`."""
    positions = [float(position) for position in chart.places]
    width = math.ceil(len(positions) / MOST_POINTS)
    starts = range(0, len(positions), width or 1)
    ends = [min(start + width, len(positions)) for start in starts]
    return tuple(
        Window(low=positions[start], high=positions[end - 1], start=start, end=end)
        for start, end in zip(starts, ends, strict=True)
    )


def points_of(values: Sequence[float | None], windows: Sequence[Window]) -> list[Point | None]:
    """One line in windows: a point each, None where it holds no finite value."""
    return [point_of(values[window.start : window.end]) for window in windows]


def point_of(values: Sequence[float | None]) -> Point | None:
    """The mean of the finite values, with their ends; None where there are none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return Point(value=math.fsum(finite) / len(finite), low=min(finite), high=max(finite)) if finite else None


_WIDTH, _RIGHT = 760.0, 72.0
_LETTER = 11.0  # width of a letter where the style sheet prints text largest, on a phone
_ROW, _BAR = 23.0, 14.0
_MOST_CHARACTERS = 24
_AXIS = 22.0  # height of the axis's name below the bars


def draw_bars(chart: Chart, head: Markup, described: Markup) -> Markup:
    """A chart of names and one series as an ``svg`` element with these attributes and this description."""
    values = [value or 0.0 for value in chart.series[0].values]
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    names = [_short(str(name)) for name in chart.places]
    left = _LETTER * max(map(len, names)) + 8.0
    start = left + (_RIGHT + 8.0 if low < 0 else 0.0)
    scale = Scale(low=low, high=high if high > low else low + 1.0, start=start, end=_WIDTH - _RIGHT)
    height = _ROW * len(values) + 12.0
    rows = [
        _row(name, value, scale, left - 8.0, 8.0 + _ROW * row)
        for row, (name, value) in enumerate(zip(names, values, strict=True))
    ]
    return Markup(
        '<svg viewBox="0 0 {width:g} {whole}" {head}>{described}{rows}'
        '<line class="axis" x1="{zero}" x2="{zero}" y1="0" y2="{height}"/>'
        '<text class="tick" x="{middle}" y="{bottom}" text-anchor="middle">{label}</text></svg>'
    ).format(
        width=_WIDTH,
        height=rounded(height),
        whole=rounded(height + _AXIS),
        head=head,
        described=described,
        middle=rounded((scale.start + scale.end) / 2),
        bottom=rounded(height + 15),
        label=plain(chart.x_label),
        rows=Markup("").join(rows),
        zero=rounded(scale(0.0)),
    )


def _short(name: str) -> str:
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"


def _row(name: str, value: float, scale: Scale, name_at: float, top: float) -> Markup:
    start, end = sorted((scale(0.0), scale(value)))
    is_up = value >= 0
    return Markup(
        '<text class="tick" x="{name_at}" y="{middle}" dy="4" text-anchor="end">{name}</text>'
        '<rect class="bar {kind}" x="{start}" y="{top}" width="{width}" height="{bar:g}"/>'
        '<text class="tick" x="{value_at}" y="{middle}" dy="4" text-anchor="{anchor}">{value:.3f}</text>'
    ).format(
        name_at=rounded(name_at),
        middle=rounded(top + _BAR / 2),
        name=plain(name),
        kind="b0" if is_up else "b1",
        start=rounded(start),
        top=rounded(top),
        width=rounded(end - start),
        bar=_BAR,
        value_at=rounded(end + 6 if is_up else start - 6),
        anchor="start" if is_up else "end",
        value=value,
    )


FULL = Canvas(width=760.0, height=258.0, left=72.0, right=24.0, top=34.0, bottom=54.0, letter=12.7, most_ticks=8)
"""As wide as the page."""
CARD = Canvas(width=280.0, height=140.0, left=36.0, right=12.0, top=12.0, bottom=34.0, letter=7.0, most_ticks=4)
"""One of several side by side, where the title is the name of the vertical axis, too."""
_MOST_MARKERS = 60
_NUM_STYLES = 4


def drawing(chart: Chart, identity: str, finding: str = "", *, small: bool = False) -> Markup:
    """A chart as an ``svg`` element, with its values as data; ``identity`` is the id of the element with its title."""
    described = Markup("")
    if finding:
        described = Markup('<desc id="{}-finding">{}</desc>').format(plain(identity), plain(finding))
    labels = Markup(' aria-describedby="{}-finding"').format(plain(identity)) if finding else Markup("")
    head = Markup('role="img" aria-labelledby="{}"').format(plain(identity)) + labels
    if chart.kind == "bars":
        return draw_bars(chart, head, described)
    # lines or stacked bars over a number
    canvas, windows = CARD if small else FULL, windows_of(chart)
    half = 0.5 if chart.kind == "stack" else 0.0
    low, high = windows[0].low - half, windows[-1].high + half
    values = [value for series in chart.series for value in series.values if value is not None]
    bottom, top = chart.y_range or widened(list(filter(math.isfinite, values)) or [0.0, 1.0])
    across = Scale(
        low=low if low < high else low - 1,
        high=high if low < high else high + 1,
        start=canvas.room_left([f"{value:g}" for value in ticks(bottom, top)]),
        end=canvas.width - canvas.right,
    )
    up = Scale(low=bottom, high=top, start=canvas.height - canvas.bottom, end=canvas.top)
    body = _stack(chart, windows, across, up, identity) if chart.kind == "stack" else _lines(chart, windows, across, up)
    return Markup(
        '<svg viewBox="0 0 {:g} {:g}" {} tabindex="0" data-over="{}" data-x="{}" data-ends="{}">{}{}{}</svg>'
    ).format(
        canvas.width,
        canvas.height,
        head,
        plain(chart.x_label),
        " ".join(window.name for window in windows),
        f"{across.low:g} {across.high:g} {across.start:g} {across.end:g} {up.end:g} {up.start:g}",
        described,
        _frame(chart, across, up, canvas),
        body,
    )


def legend(chart: Chart, identity: str) -> Markup:
    """Which line or pattern is which, as a list; nothing for a chart of one series, which its title names."""
    if len(chart.series) < 2:
        return Markup("")
    item = Markup('<li><svg class="sample" viewBox="0 0 30 12" aria-hidden="true">{}</svg>{}</li>')
    bar = Markup('<rect class="bar {}"{} x="6" y="0.5" width="18" height="11"/>')
    line = Markup('<polyline class="line {}" points="1,6 29,6"/>{}')
    samples = [
        bar.format(*_layer(series, index, identity))
        if chart.kind == "stack"
        else line.format(_class_of(series, index), _marker(15.0, 6.0, series, index))
        for index, series in enumerate(chart.series)
    ]
    items = [item.format(sample, plain(series.name)) for sample, series in zip(samples, chart.series, strict=True)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _class_of(series: Series, index: int) -> str:
    """The style of a line: by its index, overridden by the color of its kind."""
    style = f"s{index % _NUM_STYLES}"
    return style if series.kind is None else f"{style} {series.kind}"


def _frame(chart: Chart, across: Scale, up: Scale, canvas: Canvas) -> Markup:
    """Grid, ticks and the names of both axes."""
    start, end, floor = rounded(across.start), rounded(across.end), up(up.low)
    middle, below = rounded((across.start + across.end) / 2), rounded(floor + 0.9 * canvas.bottom)
    grid = Markup(
        '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>'
        '<text class="tick" x="{}" y="{y}" dy="4" text-anchor="end">{:g}</text>'
    )
    label = Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>')
    axis = Markup('<line class="axis" x1="{}" x2="{}" y1="{y}" y2="{y}"/>')
    name = Markup('<text class="tick" x="0" y="18">{}</text>').format(plain(chart.y_label))
    return Markup("").join(
        (
            *(
                grid.format(start, end, rounded(across.start - 6), value, y=rounded(up(value)))
                for value in ticks(up.low, up.high)
            ),
            *(
                label.format(rounded(across(value)), rounded(floor + 0.48 * canvas.bottom), f"{value:g}")
                for value in _step_ticks(chart, across, canvas)
            ),
            axis.format(start, end, y=rounded(floor)),
            label.format(middle, below, plain(chart.x_label)),
            name if chart.y_label else "",
        )
    )


def _step_ticks(chart: Chart, across: Scale, canvas: Canvas) -> list[float]:
    """The positions themselves where they are few and far apart, else round integers."""
    steps = [float(step) for step in chart.places]
    positions = [across(step) for step in steps]
    gaps = [after - before for before, after in pairwise(positions)]
    if len(steps) <= 10 and (not gaps or min(gaps) >= canvas.letter * (1 + max(len(f"{step:g}") for step in steps))):
        return steps
    return [value for value in ticks(across.low, across.high, most=canvas.most_ticks) if value == int(value)]


def _lines(chart: Chart, windows: Sequence[Window], across: Scale, up: Scale) -> Markup:
    line = Markup('<polyline class="line {}" points="{}"/>')
    band = Markup('<polygon class="band {}" points="{}"/>')
    parts = []
    for index, series in enumerate(chart.series):
        points, style = points_of(series.values, windows), _class_of(series, index)
        pieces = _pieces(windows, points)
        drawn = []
        if any(point is not None and point.low < point.high for point in points):
            drawn += [band.format(style, _outline(piece, across, up)) for piece in pieces if len(piece) > 1]
        courses = [[(window.middle, point.value) for window, point in piece] for piece in pieces]
        drawn += [line.format(style, coordinates(course, across, up)) for course in courses]
        if sum(map(len, courses)) <= _MOST_MARKERS or any(len(course) == 1 for course in courses):
            drawn += [_marker(across(x), up(y), series, index) for course in courses for x, y in course]
        parts.append(_with_values(series, points, drawn))
    return Markup("").join([*parts, *_not_finite(chart, across, up)])


def _with_values(series: Series, points: Sequence[Point | None], drawn: Sequence[Markup]) -> Markup:
    """A line with its numbers, which the page's script shows under its cursor."""
    numbers = " ".join("-" if point is None else f"{point.value:.4g}" for point in points)
    group = Markup('<g data-name="{}" data-y="{}">{}</g>')
    return group.format(plain(series.name), numbers, Markup("").join(drawn))


def _pieces(windows: Sequence[Window], points: Sequence[Point | None]) -> list[list[tuple[Window, Point]]]:
    """The points of a line, broken where a value is missing or not finite: a gap is not drawn as if it were known."""
    pieces: list[list[tuple[Window, Point]]] = [[]]
    for window, point in zip(windows, points, strict=True):
        if point is not None:
            pieces[-1].append((window, point))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def coordinates(points: Iterable[tuple[float, float]], across: Scale, up: Scale) -> str:
    """The points of a line as an ``svg`` element has them."""
    return " ".join(f"{rounded(across(x))},{rounded(up(y))}" for x, y in points)


def _outline(piece: Sequence[tuple[Window, Point]], across: Scale, up: Scale) -> str:
    """From the least values forth to the greatest back."""
    forth = [(window.middle, point.low) for window, point in piece]
    back = [(window.middle, point.high) for window, point in reversed(piece)]
    return coordinates([*forth, *back], across, up)


def _not_finite(chart: Chart, across: Scale, up: Scale) -> list[Markup]:
    """A mark at the edge for each value that is not finite: above, or below for -infinity."""
    mark = Markup('<text class="not-finite" x="{}" y="{}" text-anchor="middle">!<title>{}</title></text>')
    return [
        mark.format(
            rounded(across(float(step))),
            rounded(up.start - 3 if value == -math.inf else up.end + 8),
            plain(f"{series.name}: {non_finite_word(value)} at {step}"),
        )
        for series in chart.series
        for step, value in zip(chart.places, series.values, strict=True)
        if value is not None and not math.isfinite(value)
    ]


def _marker(x: float, y: float, series: Series, index: int) -> Markup:
    """A circle, square, triangle or diamond."""
    kind, style = _class_of(series, index), index % _NUM_STYLES
    if style == 0:
        return Markup('<circle class="mark {}" cx="{}" cy="{}" r="3"/>').format(kind, rounded(x), rounded(y))
    corners = {
        1: ((-3, -3), (3, -3), (3, 3), (-3, 3)),
        2: ((0, -4), (4, 3), (-4, 3)),
        3: ((0, -4), (4, 0), (0, 4), (-4, 0)),
    }[style]
    points = " ".join(f"{rounded(x + dx)},{rounded(y + dy)}" for dx, dy in corners)
    return Markup('<polygon class="mark {}" points="{}"/>').format(kind, points)


def _stack(chart: Chart, windows: Sequence[Window], across: Scale, up: Scale, identity: str) -> Markup:
    """Bars of shares on top of each other, distinguished by pattern."""
    gaps = [after.middle - before.middle for before, after in pairwise(windows)]
    width = max(1.0, 0.8 * (across(min(gaps, default=1.0)) - across(0.0)))
    floor = [0.0] * len(windows)
    layer = Markup('<path class="bar {}"{} d="{}"/>')
    hatch = Markup(
        '<defs><pattern id="{}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" class="paper"/>'
        '<line class="hatch" x1="0" x2="0" y1="0" y2="6"/></pattern></defs>'
    )
    parts = [hatch.format(plain(identity))]
    for index, series in enumerate(chart.series):
        points, bars = points_of(series.values, windows), []
        for at, (window, point) in enumerate(zip(windows, points, strict=True)):
            if point is None or not point.value:
                continue
            left, below, above = across(window.middle) - width / 2, up(floor[at]), up(floor[at] + point.value)
            bars.append(f"M{rounded(left)},{rounded(below)}h{rounded(width)}V{rounded(above)}h{rounded(-width)}z")
            floor[at] += point.value
        drawn = layer.format(*_layer(series, index, identity), "".join(bars))
        parts.append(_with_values(series, points, [drawn] if bars else []))
    return Markup("").join(parts)


def _layer(series: Series, index: int, identity: str) -> tuple[str, Markup]:
    """The class and the style of a kind of bar; the third is hatched, by the pattern of its own chart."""
    name = f"b{index % 3}" if series.kind is None else series.kind
    hatched = Markup(' style="fill:url(#{}-hatch)"').format(plain(identity))
    return name, hatched if name in ("b2", "tied") else Markup("")
