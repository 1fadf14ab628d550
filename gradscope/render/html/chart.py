"""Charts as inline SVG: colors come from the page's style, so light, dark and print need no second drawing.

Lines differ in dash and marker, bars in pattern, and a legend above the drawing shows both: none needs its color. The
legend is text of the page, which wraps on a phone where a label inside the drawing would be cut off.
"""

from __future__ import annotations

from itertools import pairwise

from gradscope.render.html.bars import draw_bars
from gradscope.render.html.escape import text
from gradscope.render.html.scale import Scale, place, ticks, widened
from gradscope.results.report import Chart, Series

WIDTH, HEIGHT = 520.0, 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 14.0, 10.0, 36.0
_MOST_MARKERS = 40
_NUM_STYLES = 4


def render_chart(chart: Chart, identity: str) -> str:
    """A chart as a figure of the page.

    Args:
        chart: The data.
        identity: An id that no other chart of the page has.

    Returns:
        A ``figure`` element.
    """
    drawing = draw_bars(chart) if chart.kind == "bars" else _over_steps(chart, identity)
    title = f'<figcaption id="{identity}">{text(chart.title)}</figcaption>'
    return f"<figure>{title}{_legend(chart, identity)}{drawing}</figure>"


def _legend(chart: Chart, identity: str) -> str:
    """Which line or pattern is which; a chart of one series is named by its title."""
    if len(chart.series) < 2:
        return ""
    draw = _stack_sample if chart.kind == "stack" else _line_sample
    items = "".join(
        f'<li><svg class="sample" viewBox="0 0 30 12" aria-hidden="true">{draw(number, identity)}</svg>'
        f"{text(series.name)}</li>"
        for number, series in enumerate(chart.series)
    )
    return f'<ul class="legend">{items}</ul>'


def _line_sample(number: int, identity: str) -> str:
    style = number % _NUM_STYLES
    return f'<polyline class="line s{style}" points="1,6 29,6"/>{_marker(15.0, 6.0, style)}'


def _stack_sample(number: int, identity: str) -> str:
    return f'<rect class="bar b{number % 3}"{_fill(number, identity)} x="6" y="0.5" width="18" height="11"/>'


def _over_steps(chart: Chart, identity: str) -> str:
    """Lines or stacked bars over a number."""
    steps = [float(step) for step in chart.places]
    half = 0.5 if chart.kind == "stack" else 0.0
    low, high = min(steps) - half, max(steps) + half
    across = Scale(
        low=low if low < high else low - 1, high=high if low < high else high + 1, start=_LEFT, end=WIDTH - _RIGHT
    )
    bottom, top = chart.y_range or widened(_numbers(chart))
    up = Scale(low=bottom, high=top, start=HEIGHT - _BOTTOM, end=_TOP)
    body = _stack(chart, across, up, identity) if chart.kind == "stack" else _lines(chart, across, up)
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-labelledby="{identity}">'
        f"{_frame(chart, across, up)}{body}</svg>"
    )


def _numbers(chart: Chart) -> list[float]:
    found = [value for series in chart.series for value in series.values if value is not None]
    return found or [0.0, 1.0]


def _frame(chart: Chart, across: Scale, up: Scale) -> str:
    """Grid, ticks and the name of the horizontal axis."""
    parts = []
    for value in ticks(up.low, up.high):
        y = place(up(value))
        parts.append(f'<line class="grid" x1="{place(across.start)}" x2="{place(across.end)}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{place(across.start - 6)}" y="{y}" dy="4" text-anchor="end">{value:g}</text>'
        )
    floor = up(up.low)
    for value in _step_ticks(chart, across):
        x = place(across(value))
        parts.append(f'<text class="tick" x="{x}" y="{place(floor + 15)}" text-anchor="middle">{value:g}</text>')
    ends, y = f'x1="{place(across.start)}" x2="{place(across.end)}"', place(floor)
    parts.append(f'<line class="axis" {ends} y1="{y}" y2="{y}"/>')
    middle = place((across.start + across.end) / 2)
    parts.append(
        f'<text class="tick" x="{middle}" y="{place(floor + 31)}" text-anchor="middle">{text(chart.x_label)}</text>'
    )
    return "".join(parts)


def _step_ticks(chart: Chart, across: Scale) -> list[float]:
    """The places themselves where they are few and far apart, else round whole numbers."""
    steps = [float(step) for step in chart.places]
    places = [across(step) for step in steps]
    gaps = [after - before for before, after in pairwise(places)]
    if len(steps) <= 10 and (not gaps or min(gaps) >= 30):
        return steps
    return [value for value in ticks(across.low, across.high, most=8) if value == int(value)]


def _lines(chart: Chart, across: Scale, up: Scale) -> str:
    parts = []
    for number, series in enumerate(chart.series):
        pieces = _pieces(chart, series, across, up)
        style = f"s{number % _NUM_STYLES}"
        for points in pieces:
            path = " ".join(f"{place(x)},{place(y)}" for x, y in points)
            parts.append(f'<polyline class="line {style}" points="{path}"/>')
        if sum(map(len, pieces)) <= _MOST_MARKERS or any(len(points) == 1 for points in pieces):
            parts += [_marker(x, y, number % _NUM_STYLES) for points in pieces for x, y in points]
    return "".join(parts)


def _pieces(chart: Chart, series: Series, across: Scale, up: Scale) -> list[list[tuple[float, float]]]:
    """The points of a line, broken where a value is missing: a gap is not drawn as if it were known."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for step, value in zip(chart.places, series.values, strict=True):
        if value is not None:
            pieces[-1].append((across(float(step)), up(value)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _marker(x: float, y: float, style: int) -> str:
    """A circle, square, triangle or diamond."""
    if style == 0:
        return f'<circle class="mark s0" cx="{place(x)}" cy="{place(y)}" r="3"/>'
    corners = {
        1: ((-3, -3), (3, -3), (3, 3), (-3, 3)),
        2: ((0, -4), (4, 3), (-4, 3)),
        3: ((0, -4), (4, 0), (0, 4), (-4, 0)),
    }[style]
    points = " ".join(f"{place(x + dx)},{place(y + dy)}" for dx, dy in corners)
    return f'<polygon class="mark s{style}" points="{points}"/>'


def _stack(chart: Chart, across: Scale, up: Scale, identity: str) -> str:
    """Bars of shares on top of each other, told apart by pattern."""
    steps = [float(step) for step in chart.places]
    gaps = [after - before for before, after in pairwise(steps)]
    width = max(1.0, 0.8 * (across(min(gaps, default=1.0)) - across(0.0)))
    floor = [0.0] * len(steps)
    parts = [_hatch(identity)]
    for number, series in enumerate(chart.series):
        fill = _fill(number, identity)
        for index, (step, value) in enumerate(zip(steps, series.values, strict=True)):
            if not value:
                continue
            y, below = up(floor[index] + value), up(floor[index])
            parts.append(
                f'<rect class="bar b{number % 3}"{fill} x="{place(across(step) - width / 2)}" y="{place(y)}" '
                f'width="{place(width)}" height="{place(below - y)}"/>'
            )
            floor[index] += value
    return "".join(parts)


def _fill(number: int, identity: str) -> str:
    """The third kind of bar is hatched, by the pattern of its own chart."""
    return f' style="fill:url(#{identity}-hatch)"' if number % 3 == 2 else ""


def _hatch(identity: str) -> str:
    return (
        f'<defs><pattern id="{identity}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" class="paper"/>'
        '<line class="hatch" x1="0" x2="0" y1="0" y2="6"/></pattern></defs>'
    )
