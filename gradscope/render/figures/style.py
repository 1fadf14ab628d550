"""How figures look, and how they become files.

Okabe and Ito's colors, distinguished in greyscale by line style and marker; labels at the lines instead of legends; a
title that names the finding and a subtitle that holds the formula. Text from a log is never read as mathematics. A file
is a PNG on white, and one SVG that is right on light and on dark pages: it keeps its light colors inline, and a style
sheet exchanges them where the reader prefers dark.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import AbstractPathEffect
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.render.words import plain
from gradscope.writing import atomic_write

INK = "#1f2328"
MUTED = "#6b7280"
FAINT = "#d7dbe0"
BLUE = "#0072b2"
SLATE = "#6f8299"
PALE = "#8cb9dc"
ORANGE = "#d55e00"
RED = "#b3261e"
GREEN = "#00795a"
PURPLE = "#9b4f96"
ON_COLOR = "#fdfdfd"  # text on a strong color, which is dark on a light page and bright on a dark one
SERIES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"))
"""Color, line style and marker of the first, second, ... line of a figure."""

_STYLE: dict[str, Any] = {
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "gradscope",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}

_SCREEN_DPI = 100  # dots per inch in a notebook: its column is about as wide as a figure then
_HEAD = 0.72  # inches above the axes for the title and one line of subtitle
_LINE = 0.165  # inches of a further line of subtitle, or of the panels' own titles
_CHARACTER = 0.064  # inches of an average character of the subtitle
_TITLE_LINE, _TITLE_CHARACTER = 0.21, 0.104  # inches of a further line of the title, and of its average character
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@contextmanager
def figure_style() -> Iterator[None]:
    """The style, for as long as a figure is drawn or saved; the caller's own settings are back afterwards."""
    settings: Any = {**matplotlib.rcParamsDefault, **_STYLE}
    with matplotlib.rc_context(rc=settings):
        yield


class ShownFigure(Figure):
    """A figure that a notebook shows, whether or not it has loaded pyplot, which otherwise provides that."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        with figure_style():
            self.savefig(picture, format="png", dpi=_SCREEN_DPI)
        return picture.getvalue()


class Panels(Struct, frozen=True, kw_only=True):
    """The axes of a figure."""

    heights: Sequence[float] = (1,)  # relative heights of the rows
    columns: int = 1
    gap: float = 0.35  # between rows, in axes heights
    titles: Sequence[str] = ()  # their own titles; none: they have none
    share_x: bool = True
    share_y: bool = False  # one scale for all, whose numbers stand at the first of a row


_ONE_PANEL = Panels()


def new_figure(
    title: str,
    subtitle: str,
    *,
    width: float = 7.2,
    height: float = 4.2,
    left: float = 0.7,
    right: float = 1.15,
    panels: Panels = _ONE_PANEL,
) -> tuple[Figure, list[Axes]]:
    """A titled figure with so many inches for labels left and right; each line of the subtitle is wrapped."""
    figure = ShownFigure(figsize=(width, height))
    FigureCanvasAgg(figure)
    headings = textwrap.wrap(title, int((width - 0.36) / _TITLE_CHARACTER)) or [""]
    width_in_characters = int((width - 0.36) / _CHARACTER)
    lines = [line for part in subtitle.split("\n") for line in textwrap.wrap(part, width_in_characters)]
    below = _TITLE_LINE * (len(headings) - 1)
    head = _HEAD + below + _LINE * (len(lines) - 1 + bool(panels.titles))
    grid = figure.subplots(
        len(panels.heights),
        panels.columns,
        squeeze=False,
        sharex=panels.share_x,
        sharey=panels.share_y,
        gridspec_kw={
            "left": left / width,
            "right": 1 - right / width,
            "bottom": 0.52 / height,
            "top": 1 - head / height,
            "hspace": panels.gap,
            "wspace": 0.18,
            "height_ratios": panels.heights,
        },
    )
    edge = 0.18 / width
    figure.text(edge, 1 - 0.18 / height, "\n".join(headings), fontsize=12.5, fontweight="bold", va="top")
    figure.text(
        edge, 1 - (0.44 + below) / height, "\n".join(lines), fontsize=8.5, color=MUTED, va="top", linespacing=1.35
    )
    for axes, panel_title in zip(grid.flat, panels.titles, strict=False):
        axes.set_title(panel_title, loc="left", fontsize=9)
    return figure, list(grid.flat)


def draw_course(
    axes: Axes, name: str, points: Iterable[tuple[float, Estimate]], *, color: str, band: float = 0.15, **line: Any
) -> list[tuple[float, str, str]]:
    """Draws the known ones among estimates in a line, and their intervals as a band; the label of its end, if any."""
    defined = [(position, estimate) for position, estimate in points if estimate.value is not None]
    if not defined:
        return []
    positions, values = [position for position, _ in defined], [estimate.value or 0.0 for _, estimate in defined]
    axes.plot(positions, values, color=color, **line)
    if band:
        lows, highs = zip(*(estimate.ends for _, estimate in defined), strict=True)
        axes.fill_between(positions, lows, highs, color=color, alpha=band, linewidth=0)
    return [(values[-1], name, color)]


def draw_lines(axes: Axes, series: Mapping[str, Iterable[tuple[float, float | None]]]) -> list[tuple[float, str, str]]:
    """Draws courses, each in a style of its own and without what is undefined; their labels."""
    labels = []
    for (name, pairs), (color, line, marker) in zip(series.items(), SERIES, strict=True):
        points = [(step, value) for step, value in pairs if value is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, linestyle=line, marker=marker)
            labels.append((points[-1][1], name, color))
    return labels


Layer = tuple[str, Sequence[float], str, str]  # name, heights, color, and that of the name


def draw_stack(axes: Axes, positions: Sequence[float], layers: Iterable[Layer]) -> list[tuple[float, str, str]]:
    """Draws bars on top of each other, the pale ones hatched; their labels."""
    width = 0.84 * min((after - before for before, after in pairwise(positions)), default=1.0)
    floor, labels = [0.0] * len(positions), []
    for name, heights, color, text_color in layers:
        hatch, edge = ("////", MUTED) if color == FAINT else ("", "white")
        axes.bar(positions, heights, width, bottom=floor, color=color, hatch=hatch, edgecolor=edge, linewidth=0.4)
        labels.append((floor[-1] + heights[-1] / 2, name, text_color))
        floor = [below + height for below, height in zip(floor, heights, strict=True)]
    axes.set_xlim(positions[0] - width, positions[-1] + width)
    return labels


def draw_bars(axes: Axes, names: Sequence[str], values: Sequence[float], *, form: str) -> None:
    """Draws horizontal bars from top to bottom, and the number of each at its end."""
    axes.barh(range(len(values)), values, 0.68, color=[BLUE if value >= 0 else ORANGE for value in values])
    for row, value in enumerate(values):
        axes.text(max(value, 0.0), row, f" {value:{form}}", va="center", fontsize=8.5, color=INK)
    list_rows(axes, names)


def list_rows(axes: Axes, names: Sequence[str], *, right: bool = False) -> None:
    """Gives each row its name, the first on top, at the left or at the right of the axes."""
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False)
    axes.grid(axis="x", linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_yticks(range(len(names)), [] if right else names, color=INK, fontsize=8.5)
    for row, name in enumerate(names if right else ()):
        axes.text(1.02, row, name, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=INK)


def label_lines(axes: Axes, labels: Sequence[tuple[float, str, str]], *, gap: float = 0.062) -> None:
    """Names lines (height, text, color) at their right end, ``gap`` axes apart; y limits must be final."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [min(1.0, max(0.0, float(to_axes.transform((1.0, height))[1]))) for height, _, _ in labels]
    placed: list[float] = []
    order = sorted(range(len(labels)), key=lambda index: heights[index])
    for index in order:
        placed.append(max(heights[index], placed[-1] + gap) if placed else heights[index])
    overshoot = max(0.0, placed[-1] - 1.0) if placed else 0.0
    for rank, index in enumerate(order):
        _, text, color = labels[index]
        ceiling = placed[rank] - overshoot
        axes.text(1.015, ceiling, text, transform=axes.transAxes, color=color, fontsize=8.5, va="center")


def power_of_ten(value: float, _: object = None) -> str:
    """The label of a logarithmic axis, without mathematics: ``10⁻⁵``."""
    return "10" + str(round(math.log10(value))).translate(_SUPERSCRIPTS)


def halo() -> list[AbstractPathEffect]:
    """A white rim, which keeps a line readable on whatever it crosses."""
    return [patheffects.Stroke(linewidth=3.0, foreground="white"), patheffects.Normal()]


def tick_steps(axes: Axes, steps: Sequence[int], *, max_ticks: int) -> None:
    """Puts ticks at the steps themselves where at most so many fit, else at round numbers."""
    few = len(steps) <= max_ticks
    axes.xaxis.set_major_locator(FixedLocator(list(steps)) if few else MaxNLocator(integer=True, nbins=max_ticks))


def tick_at(axis: Axis, values: Sequence[float]) -> None:
    """Puts ticks at these numbers and nowhere else, for logarithmic axes that would add their own."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def powers_of_two(axes: Axes, direction: Literal["x", "y"], highest: float) -> None:
    """Makes an axis logarithmic, from just below 1 to just above the highest number, with a tick at each power."""
    axes.set(**{f"{direction}scale": "log", f"{direction}lim": (0.93, highest * 1.1)})
    tick_at(getattr(axes, f"{direction}axis"), [float(2**power) for power in range(int(math.log2(highest)) + 1)])


def clear_frame(axes: Axes) -> None:
    """Leaves nothing of the axes but their labels, for cells that are drawn edge to edge."""
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def label_room(names: Sequence[str]) -> float:
    """Inches to the right of the axes that :func:`label_lines` needs for these names."""
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    return 0.32 + _CHARACTER * longest


def name_of(text: str, *, limit: int = 24) -> str:
    """A name from a log, cut to a limit, with characters outside ASCII escaped: a figure's font may lack them."""
    return plain(plain(text).encode("ascii", "backslashreplace").decode("ascii"), limit=limit)


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
    """Writes a figure as PNG and SVG; the same figure gives the same bytes."""
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
