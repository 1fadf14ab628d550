"""Figures as files: a PNG on white, and one SVG that is right on light and on dark pages.

A drawing keeps its light colors inline; a style sheet exchanges them where the reader prefers dark. A program that
knows no media queries shows the light drawing, and nothing in the file differs between two runs.
"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from gradscope.render.figures.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    ON_COLOR,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    SLATE,
    figure_style,
)
from gradscope.writing import atomic_write

DARK = {
    "#ffffff": "#14171a",
    INK: "#e6e8ea",
    MUTED: "#a0a8b2",
    FAINT: "#343a41",
    BLUE: "#56b4e9",
    ORANGE: "#f0934e",
    GREEN: "#35c396",
    PURPLE: "#cc92c6",
    RED: "#f08a80",
    SLATE: "#93a7c0",
    PALE: "#2f5f7d",
    ON_COLOR: "#101214",
}
"""Color on white -> color on near black; those of the HTML report."""


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Writes a figure as PNG and SVG beside each other; the same figure gives the same bytes."""
    picture, drawing = stem.with_suffix(".png"), stem.with_suffix(".svg")
    pixels, text = io.BytesIO(), io.StringIO()
    with figure_style():
        figure.savefig(pixels, dpi=200, metadata={"Software": None}, format="png")
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    atomic_write(picture, pixels.getvalue(), force=True)
    atomic_write(drawing, for_dark_pages(text.getvalue()), force=True)
    return [picture, drawing]


def for_dark_pages(svg: str) -> str:
    """An SVG of matplotlib, its colors in ``style`` attributes, with a rule for readers who prefer dark pages."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    return svg.replace("</style>", f"@media (prefers-color-scheme:dark){{{rules}}}</style>", 1)
