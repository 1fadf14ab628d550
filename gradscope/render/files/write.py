"""The files of a result: JSON, tidy CSV, arrays as safetensors, figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradscope.render.files.csv_tables import render_csv, tidy_tables
from gradscope.render.registry import draw_figures, load, spec_of
from gradscope.results.envelope import render_json
from gradscope.writing import atomic_write


def write_files(result: object, document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes a result into an existing folder: document, tables, arrays, figures; returns the files in that order."""
    from gradscope.render.figures.save import save_figure

    spec = spec_of(result)
    path = folder / f"{spec.name}.json"
    atomic_write(path, render_json(document))
    written = [path]
    for stem, rows in tidy_tables(result).items():
        table = folder / f"{stem}.csv"
        atomic_write(table, render_csv(rows))
        written.append(table)
    if spec.arrays is not None:
        written += load(spec.arrays)(result, folder)
    for stem, figure in draw_figures(result).items():
        written += save_figure(figure, folder / stem)
    return written
