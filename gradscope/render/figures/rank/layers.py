"""Effective rank and sparsity of every weight's gradient as heat maps: layers down, modules across."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gradscope.catalog.lookup import metric
from gradscope.render.figures.style import BLUE, INK, ON_COLOR, clear_frame, name_of, new_figure
from gradscope.results.rank import GradientSpectrum, RankReport
from gradscope.results.ranks.tokens import GradientSparsity

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)$")
_FAINTEST = 0.07
"""Opacity of the lowest cell."""
OUTSIDE = "outside"
"""The row of weights that belong to no layer, such as the embedding."""


def draw_layers(report: RankReport) -> dict[str, Figure]:
    """Heat maps of rank and sparsity at the last step of ``rows = weight``; none where no weight has a gradient."""
    return _ranks(report.spectra) | _sparsity(report.sparsity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One weight of a heat map."""

    value: str
    """The number."""
    note: str
    """Small print below it."""
    strength: float
    """How much color, from 0 to 1."""


def _ranks(spectra: Sequence[GradientSpectrum]) -> dict[str, Figure]:
    ranked = [s for s in spectra if s.label.tensor is not None and s.ranks.effective_rank.value is not None]
    if not ranked:
        return {}
    step = max(spectrum.label.step for spectrum in ranked)
    figure = heat_map(
        {place_of(s.label.tensor or ""): _rank_cell(s) for s in ranked if s.label.step == step},
        f"Effective rank of each weight's gradient, step {step}",
        f"{metric('effective_rank').formula} of the step's gradient matrix of each weight\n"
        "small print: unrelated entries would have this, a Gaussian matrix of the same shape; stronger: closer to it",
    )
    return {"rank_layers": figure}


def _rank_cell(spectrum: GradientSpectrum) -> Cell:
    value, null = spectrum.ranks.effective_rank.value or 0.0, spectrum.nulls.get("gaussian")
    ceiling = min(spectrum.label.shape) if null is None or null.value is None else null.value
    strength = (value - 1) / (ceiling - 1) if ceiling > 1 else 1.0
    return Cell(value=f"{value:.1f}", note=f"{ceiling:.1f}", strength=min(strength, 1.0))


def _sparsity(sparsities: Sequence[GradientSparsity]) -> dict[str, Figure]:
    of_weights = [one for one in sparsities if one.tensor is not None and one.gini.value is not None]
    if not of_weights:
        return {}
    step = max(one.step for one in of_weights)
    cells = {
        place_of(one.tensor or ""): Cell(
            value=f"{one.gini.value:.2f}", note=f"{one.small.value:.0%}", strength=one.gini.value or 0.0
        )
        for one in of_weights
        if one.step == step
    }
    figure = heat_map(
        cells,
        f"Sparsity of each weight's gradient, step {step}",
        "Gini of the absolute values of its entries: 0 for equal sizes, towards 1 where a single entry is everything\n"
        "small print: share of entries below 1 % of the largest",
    )
    return {"rank_layers_sparsity": figure}


def place_of(tensor: str) -> tuple[str, str]:
    """Where a tensor stands in the heat map.

    Returns:
        Row and column.

    Example:
        >>> place_of("model.layers.0.self_attn.q_proj.weight"), place_of("model.embed_tokens.weight")
        (('0', 'q_proj'), ('outside', 'embed_tokens'))
    """
    name = tensor.replace(".default", "").removesuffix(".weight")
    layer = _LAYER.search(name)
    row, module = (layer[1], layer[2]) if layer else (OUTSIDE, name)
    parts = module.split(".")
    column = ".".join(parts[-2:]) if parts[-1].startswith("lora_") else parts[-1]
    return row, column


def heat_map(cells: Mapping[tuple[str, str], Cell], title: str, subtitle: str) -> Figure:
    """Weights by layer and module, each at its :func:`place_of`; the subtitle says what the small print is."""
    rows = sorted({row for row, _ in cells}, key=lambda row: (row == OUTSIDE, int(row) if row.isdigit() else 0))
    columns = list(dict.fromkeys(column for _, column in cells))
    width, height = 1.9 + max(0.66 * len(columns), 3.6), 1.75 + 0.36 * len(rows)
    figure, (axes,) = new_figure(
        title,
        subtitle,
        width=width,
        height=height,
        right=0.25,
    )
    for (row, column), cell in cells.items():
        _draw(axes, columns.index(column), rows.index(row), cell)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([place + 0.5 for place in range(len(columns))], _broken(columns), fontsize=7.5)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], [name_of(_row_name(row)) for row in rows])
    clear_frame(axes)
    return figure


def _broken(columns: Sequence[str]) -> list[str]:
    """Long module names in two lines, so that they stand level."""
    names = [name_of(column, limit=22) for column in columns]
    return [name if len(name) <= 9 else name.replace("_", "_\n", 1).replace(".", ".\n", 1) for name in names]


def _row_name(row: str) -> str:
    return row if row == OUTSIDE else f"layer {row}"


def _draw(axes: Axes, x: int, y: int, cell: Cell) -> None:
    opacity = _FAINTEST + (1 - _FAINTEST) * cell.strength
    ink = ON_COLOR if opacity > 0.6 else INK
    axes.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=BLUE, alpha=opacity, linewidth=0))
    axes.text(x + 0.5, y + 0.42, cell.value, color=ink, ha="center", va="center", fontsize=8.5)
    axes.text(x + 0.5, y + 0.78, cell.note, color=ink, ha="center", va="center", fontsize=5.5)
