"""Horizontal bars with a name each, from zero to both sides."""

from __future__ import annotations

from markupsafe import Markup

from gradscope.render.html.scale import Scale, place
from gradscope.render.words.escape import plain
from gradscope.results.report import Chart

_WIDTH, _RIGHT = 760.0, 72.0
_LETTER = 11.0
"""Width of a letter where the style sheet prints text largest, on a phone."""
_ROW, _BAR = 23.0, 14.0
_MOST_CHARACTERS = 24
_AXIS = 22.0
"""Height of the axis's name below the bars."""


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
        height=place(height),
        whole=place(height + _AXIS),
        head=head,
        described=described,
        middle=place((scale.start + scale.end) / 2),
        bottom=place(height + 15),
        label=plain(chart.x_label),
        rows=Markup("").join(rows),
        zero=place(scale(0.0)),
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
        name_at=place(name_at),
        middle=place(top + _BAR / 2),
        name=plain(name),
        kind="b0" if is_up else "b1",
        start=place(start),
        top=place(top),
        width=place(end - start),
        bar=_BAR,
        value_at=place(end + 6 if is_up else start - 6),
        anchor="start" if is_up else "end",
        value=value,
    )
