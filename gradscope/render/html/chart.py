"""Charts as inline SVG: colors come from the page's style, so light, dark and print need no second drawing.

Lines differ in dash and marker, bars in pattern, and a legend above the drawing shows both: none needs its color. The
legend is text of the page, which wraps on a phone where a label inside the drawing would be cut off.
"""

from __future__ import annotations

import math
from itertools import pairwise

from markupsafe import Markup

from gradscope.render.html.bars import draw_bars
from gradscope.render.html.scale import Scale, place, ticks, widened
from gradscope.render.words.escape import plain
from gradscope.results.report import Chart, Series
from gradscope.say import non_finite_word

WIDTH, HEIGHT = 520.0, 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 14.0, 10.0, 36.0
_MOST_MARKERS = 40
_NUM_STYLES = 4


def drawing(chart: Chart, identity: str) -> Markup:
    """A chart as an ``svg`` element; its title stands outside, in an element of that id."""
    return draw_bars(chart) if chart.kind == "bars" else _over_steps(chart, identity)


def legend(chart: Chart, identity: str) -> Markup:
    """Which line or pattern is which, as a list; nothing for a chart of one series, which its title names."""
    if len(chart.series) < 2:
        return Markup("")
    draw = _stack_sample if chart.kind == "stack" else _line_sample
    item = Markup('<li><svg class="sample" viewBox="0 0 30 12" aria-hidden="true">{}</svg>{}</li>')
    items = [item.format(draw(style, identity), plain(series.name)) for style, series in enumerate(chart.series)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _line_sample(index: int, identity: str) -> Markup:
    style = index % _NUM_STYLES
    line = Markup('<polyline class="line s{}" points="1,6 29,6"/>').format(style)
    return line + _marker(15.0, 6.0, style)


def _stack_sample(index: int, identity: str) -> Markup:
    bar = Markup('<rect class="bar b{}"{} x="6" y="0.5" width="18" height="11"/>')
    return bar.format(index % 3, _fill(index, identity))


def _over_steps(chart: Chart, identity: str) -> Markup:
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
    return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-labelledby="{}">{}{}</svg>').format(
        WIDTH, HEIGHT, plain(identity), _frame(chart, across, up), body
    )


def _numbers(chart: Chart) -> list[float]:
    values = [value for series in chart.series for value in series.values if value is not None]
    return [value for value in values if math.isfinite(value)] or [0.0, 1.0]


def _frame(chart: Chart, across: Scale, up: Scale) -> Markup:
    """Grid, ticks and the name of the horizontal axis."""
    start, end, floor = place(across.start), place(across.end), up(up.low)
    grid = Markup(
        '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>'
        '<text class="tick" x="{}" y="{y}" dy="4" text-anchor="end">{:g}</text>'
    )
    label = Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>')
    axis = Markup('<line class="axis" x1="{}" x2="{}" y1="{y}" y2="{y}"/>')
    return Markup("").join(
        (
            *(
                grid.format(start, end, place(across.start - 6), value, y=place(up(value)))
                for value in ticks(up.low, up.high)
            ),
            *(
                label.format(place(across(value)), place(floor + 15), f"{value:g}")
                for value in _step_ticks(chart, across)
            ),
            axis.format(start, end, y=place(floor)),
            label.format(place((across.start + across.end) / 2), place(floor + 31), plain(chart.x_label)),
        )
    )


def _step_ticks(chart: Chart, across: Scale) -> list[float]:
    """The places themselves where they are few and far apart, else round whole numbers."""
    steps = [float(step) for step in chart.places]
    places = [across(step) for step in steps]
    gaps = [after - before for before, after in pairwise(places)]
    if len(steps) <= 10 and (not gaps or min(gaps) >= 30):
        return steps
    return [value for value in ticks(across.low, across.high, most=8) if value == int(value)]


def _lines(chart: Chart, across: Scale, up: Scale) -> Markup:
    line, parts = Markup('<polyline class="line s{}" points="{}"/>'), []
    for index, series in enumerate(chart.series):
        pieces, style = _pieces(chart, series, across, up), index % _NUM_STYLES
        parts += [line.format(style, " ".join(f"{place(x)},{place(y)}" for x, y in points)) for points in pieces]
        if sum(map(len, pieces)) <= _MOST_MARKERS or any(len(points) == 1 for points in pieces):
            parts += [_marker(x, y, style) for points in pieces for x, y in points]
    return Markup("").join([*parts, *_not_finite(chart, across, up)])


def _not_finite(chart: Chart, across: Scale, up: Scale) -> list[Markup]:
    """A mark at the edge for each value that has no place, because it is not finite: above, or below for -infinity."""
    mark = Markup('<text class="not-finite" x="{}" y="{}" text-anchor="middle">!<title>{}</title></text>')
    return [
        mark.format(
            place(across(float(step))),
            place(up.start - 3 if value == -math.inf else up.end + 8),
            plain(f"{series.name}: {non_finite_word(value)} at {step}"),
        )
        for series in chart.series
        for step, value in zip(chart.places, series.values, strict=True)
        if value is not None and not math.isfinite(value)
    ]


def _pieces(chart: Chart, series: Series, across: Scale, up: Scale) -> list[list[tuple[float, float]]]:
    """The points of a line, broken where a value is missing or not finite: a gap is not drawn as if it were known."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for step, value in zip(chart.places, series.values, strict=True):
        if value is not None and math.isfinite(value):
            pieces[-1].append((across(float(step)), up(value)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _marker(x: float, y: float, style: int) -> Markup:
    """A circle, square, triangle or diamond."""
    if style == 0:
        return Markup('<circle class="mark s0" cx="{}" cy="{}" r="3"/>').format(place(x), place(y))
    corners = {
        1: ((-3, -3), (3, -3), (3, 3), (-3, 3)),
        2: ((0, -4), (4, 3), (-4, 3)),
        3: ((0, -4), (4, 0), (0, 4), (-4, 0)),
    }[style]
    points = " ".join(f"{place(x + dx)},{place(y + dy)}" for dx, dy in corners)
    return Markup('<polygon class="mark s{}" points="{}"/>').format(style, points)


def _stack(chart: Chart, across: Scale, up: Scale, identity: str) -> Markup:
    """Bars of shares on top of each other, told apart by pattern."""
    steps = [float(step) for step in chart.places]
    gaps = [after - before for before, after in pairwise(steps)]
    width = max(1.0, 0.8 * (across(min(gaps, default=1.0)) - across(0.0)))
    floor = [0.0] * len(steps)
    bar = Markup('<rect class="bar b{}"{} x="{}" y="{}" width="{}" height="{}"/>')
    parts = [_hatch(identity)]
    for layer, series in enumerate(chart.series):
        fill = _fill(layer, identity)
        for index, (step, value) in enumerate(zip(steps, series.values, strict=True)):
            if not value:
                continue
            y, below = up(floor[index] + value), up(floor[index])
            left = place(across(step) - width / 2)
            parts.append(bar.format(layer % 3, fill, left, place(y), place(width), place(below - y)))
            floor[index] += value
    return Markup("").join(parts)


def _fill(layer: int, identity: str) -> Markup:
    """The third kind of bar is hatched, by the pattern of its own chart."""
    return Markup(' style="fill:url(#{}-hatch)"').format(plain(identity)) if layer % 3 == 2 else Markup("")


def _hatch(identity: str) -> Markup:
    return Markup(
        '<defs><pattern id="{}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" class="paper"/>'
        '<line class="hatch" x1="0" x2="0" y1="0" y2="6"/></pattern></defs>'
    ).format(plain(identity))
