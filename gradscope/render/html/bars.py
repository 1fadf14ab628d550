"""Horizontal bars with a name each, from zero to both sides."""

from __future__ import annotations

from gradscope.render.html.escape import text
from gradscope.render.html.scale import Scale, place
from gradscope.results.report import Chart

_WIDTH, _LEFT, _RIGHT = 520.0, 176.0, 64.0
_ROW, _BAR = 18.0, 12.0
_MOST_CHARACTERS = 20


def draw_bars(chart: Chart) -> str:
    """A chart of bars.

    Args:
        chart: Names and one series.

    Returns:
        An ``svg`` element.
    """
    values = [value or 0.0 for value in chart.series[0].values]
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    scale = Scale(
        low=low, high=high if high > low else low + 1.0, start=_LEFT + (56.0 if low < 0 else 0.0), end=_WIDTH - _RIGHT
    )
    height = _ROW * len(values) + 8.0
    zero = place(scale(0.0))
    rows = [
        _row(str(name), value, scale, 4.0 + _ROW * number)
        for number, (name, value) in enumerate(zip(chart.places, values, strict=True))
    ]
    label = f"{text(chart.title)}: {text(chart.x_label)}"
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {place(height)}" role="img" aria-label="{label}">{"".join(rows)}'
        f'<line class="axis" x1="{zero}" x2="{zero}" y1="0" y2="{place(height)}"/></svg>'
    )


def _row(name: str, value: float, scale: Scale, top: float) -> str:
    start, end = sorted((scale(0.0), scale(value)))
    middle = place(top + _BAR / 2)
    shown = name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"
    at, anchor = (place(end + 6), "start") if value >= 0 else (place(start - 6), "end")
    kind = "b0" if value >= 0 else "b1"
    return (
        f'<text class="tick" x="{place(_LEFT - 8)}" y="{middle}" dy="4" text-anchor="end">{text(shown)}</text>'
        f'<rect class="bar {kind}" x="{place(start)}" y="{place(top)}" width="{place(end - start)}" height="{_BAR:g}"/>'
        f'<text class="tick" x="{at}" y="{middle}" dy="4" text-anchor="{anchor}">{value:.3f}</text>'
    )
