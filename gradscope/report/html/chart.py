"""Charts as inline SVG: colors come from the page's style, so light, dark and print need no second drawing.

Lines differ in dash and marker, bars in pattern, and each is named where it ends: none needs its color.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gradscope.report.html.bars import draw_bars
from gradscope.report.html.escape import text
from gradscope.report.html.scale import Scale, place, ticks, widened
from gradscope.results.report import Chart, Series

WIDTH, HEIGHT = 720.0, 250.0
_LEFT, _TOP, _BOTTOM = 56.0, 10.0, 34.0
_CHARACTER = 6.6
_MOST_MARKERS = 40
_NUM_STYLES = 4
_LABEL_GAP = 14.0


def render_chart(chart: Chart, identity: str) -> str:
    """A chart as a figure of the page.

    Args:
        chart: The data.
        identity: An id that no other chart of the page has.

    Returns:
        A ``figure`` element.
    """
    drawing = draw_bars(chart) if chart.kind == "bars" else _over_steps(chart, identity)
    return f'<figure><figcaption id="{identity}">{text(chart.title)}</figcaption>{drawing}</figure>'


def _over_steps(chart: Chart, identity: str) -> str:
    """Lines or stacked bars over a number."""
    right = 16.0 + _CHARACTER * max(min(len(series.name), 30) for series in chart.series)
    steps = [float(step) for step in chart.places]
    half = 0.5 if chart.kind == "stack" else 0.0
    low, high = min(steps) - half, max(steps) + half
    across = Scale(
        low=low if low < high else low - 1, high=high if low < high else high + 1, start=_LEFT, end=WIDTH - right
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
        f'<text class="tick" x="{middle}" y="{place(floor + 30)}" text-anchor="middle">{text(chart.x_label)}</text>'
    )
    return "".join(parts)


def _step_ticks(chart: Chart, across: Scale) -> list[float]:
    """The places themselves where they are few and far apart, else round whole numbers."""
    steps = [float(step) for step in chart.places]
    places = [across(step) for step in steps]
    gaps = [after - before for before, after in pairwise(places)]
    if len(steps) <= 10 and (not gaps or min(gaps) >= 24):
        return steps
    return [value for value in ticks(across.low, across.high, most=8) if value == int(value)]


def _lines(chart: Chart, across: Scale, up: Scale) -> str:
    parts, labels = [], []
    for number, series in enumerate(chart.series):
        pieces = _pieces(chart, series, across, up)
        if not pieces:
            continue
        style = f"s{number % _NUM_STYLES}"
        for points in pieces:
            path = " ".join(f"{place(x)},{place(y)}" for x, y in points)
            parts.append(f'<polyline class="line {style}" points="{path}"/>')
        if sum(map(len, pieces)) <= _MOST_MARKERS or any(len(points) == 1 for points in pieces):
            parts += [_marker(x, y, number % _NUM_STYLES) for points in pieces for x, y in points]
        labels.append((pieces[-1][-1][1], series, style))
    return "".join(parts) + _labels(labels, across.end)


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


def _labels(labels: Sequence[tuple[float, Series, str]], end: float) -> str:
    """The name of each line at its end, moved apart where two would overlap."""
    parts: list[str] = []
    lowest = -_LABEL_GAP
    for height, series, style in sorted(labels, key=lambda label: label[0]):
        lowest = max(height, lowest + _LABEL_GAP)
        name = series.name if len(series.name) <= 30 else f"{series.name[:29]}…"
        parts.append(f'<text class="label {style}" x="{place(end + 8)}" y="{place(lowest)}" dy="4">{text(name)}</text>')
    return "".join(parts)


def _stack(chart: Chart, across: Scale, up: Scale, identity: str) -> str:
    """Bars of shares on top of each other, told apart by pattern."""
    steps = [float(step) for step in chart.places]
    gaps = [after - before for before, after in pairwise(steps)]
    width = max(1.0, 0.8 * (across(min(gaps, default=1.0)) - across(0.0)))
    floor = [0.0] * len(steps)
    parts = [_hatch(identity)]
    labels = []
    for number, series in enumerate(chart.series):
        fill = f' style="fill:url(#{identity}-hatch)"' if number == 2 else ""
        for index, (step, value) in enumerate(zip(steps, series.values, strict=True)):
            if not value:
                continue
            y, below = up(floor[index] + value), up(floor[index])
            parts.append(
                f'<rect class="bar b{number % 3}"{fill} x="{place(across(step) - width / 2)}" y="{place(y)}" '
                f'width="{place(width)}" height="{place(below - y)}"/>'
            )
            floor[index] += value
        last = series.values[-1] or 0.0
        labels.append((up(floor[-1] - last / 2), series, f"t{number % 3}"))
    return "".join(parts) + _labels(labels, across.end)


def _hatch(identity: str) -> str:
    return (
        f'<defs><pattern id="{identity}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" class="paper"/>'
        '<line class="hatch" x1="0" x2="0" y1="0" y2="6"/></pattern></defs>'
    )
