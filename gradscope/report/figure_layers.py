"""Effective rank of every weight's gradient as a heat map: layers down, modules across."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gradscope.metrics.catalog import metric
from gradscope.report.figure_style import BLUE, INK, ON_COLOR, name_of, new_figure
from gradscope.results.rank import GradientSpectrum, RankReport

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)$")
_FAINTEST = 0.07
"""Opacity of the lowest cell."""
OUTSIDE = "outside"
"""The row of weights that belong to no layer, such as the embedding."""


def draw_layers(report: RankReport) -> dict[str, Figure]:
    """The heat map of the last computed step.

    Args:
        report: A measurement with ``rows = weight``.

    Returns:
        One figure; none where no weight has a rank.
    """
    ranked = [s for s in report.spectra if s.tensor is not None and s.effective_rank.value is not None]
    if not ranked:
        return {}
    step = max(spectrum.step for spectrum in ranked)
    last = [spectrum for spectrum in ranked if spectrum.step == step]
    return {"rank_layers": _heat_map({place_of(s.tensor or ""): s for s in last}, step)}


def place_of(tensor: str) -> tuple[str, str]:
    """Where a tensor stands in the heat map.

    Args:
        tensor: A parameter's name, such as ``model.layers.0.self_attn.q_proj.weight``.

    Returns:
        Row and column.

    Example:
        >>> place_of("model.layers.0.self_attn.q_proj.weight"), place_of("model.embed_tokens.weight")
        (('0', 'q_proj'), ('outside', 'embed_tokens'))
    """
    name = tensor.replace(".default", "").removesuffix(".weight")
    found = _LAYER.search(name)
    row, module = (found[1], found[2]) if found else (OUTSIDE, name)
    parts = module.split(".")
    column = ".".join(parts[-2:]) if parts[-1].startswith("lora_") else parts[-1]
    return row, column


def _heat_map(cells: Mapping[tuple[str, str], GradientSpectrum], step: int) -> Figure:
    rows = sorted({row for row, _ in cells}, key=lambda row: (row == OUTSIDE, int(row) if row.isdigit() else 0))
    columns = list(dict.fromkeys(column for _, column in cells))
    width, height = 1.9 + max(0.66 * len(columns), 3.6), 1.75 + 0.36 * len(rows)
    figure, (axes,) = new_figure(
        f"Effective rank of each weight's gradient, step {step}",
        f"{metric('effective_rank').formula} of the step's gradient matrix of each weight\n"
        "small print: the smaller side of the matrix; stronger: closer to it",
        width=width,
        height=height,
        right=0.25,
    )
    for (row, column), spectrum in cells.items():
        _cell(axes, columns.index(column), rows.index(row), spectrum)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([place + 0.5 for place in range(len(columns))], _broken(columns), fontsize=7.5)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], [name_of(_row_name(row)) for row in rows])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _broken(columns: Sequence[str]) -> list[str]:
    """Long module names in two lines, so that they stand level."""
    names = [name_of(column, limit=22) for column in columns]
    return [name if len(name) <= 9 else name.replace("_", "_\n", 1).replace(".", ".\n", 1) for name in names]


def _row_name(row: str) -> str:
    return row if row == OUTSIDE else f"layer {row}"


def _cell(axes: Axes, x: int, y: int, spectrum: GradientSpectrum) -> None:
    value, ceiling = spectrum.effective_rank.value or 0.0, min(spectrum.shape)
    share = (value - 1) / (ceiling - 1) if ceiling > 1 else 1.0
    opacity = _FAINTEST + (1 - _FAINTEST) * share
    ink = ON_COLOR if opacity > 0.6 else INK
    axes.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=BLUE, alpha=opacity, linewidth=0))
    axes.text(x + 0.5, y + 0.42, f"{value:.1f}", color=ink, ha="center", va="center", fontsize=8.5)
    axes.text(x + 0.5, y + 0.78, f"{ceiling}", color=ink, ha="center", va="center", fontsize=5.5)
