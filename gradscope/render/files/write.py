"""The files of a result: JSON, tidy CSV, arrays as safetensors, figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from gradscope.render.files.tables import render_csv, tidy_tables
from gradscope.render.registry import draw_figures, load, spec_of
from gradscope.results.envelope import render_json
from gradscope.results.rank import GradientSpectrum, RankReport
from gradscope.writing import atomic_write, repeatable


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


def write_spectra(report: RankReport, folder: Path) -> list[Path]:
    """Writes the singular values of each spectrum under a name that says whose they are; no file without spectra."""
    if not report.spectra:
        return []
    path = folder / "rank_spectra.safetensors"
    arrays = {_name(spectrum): np.asarray(spectrum.singular_values) for spectrum in report.spectra}
    about = {"rows": report.rows, "values": "singular values, descending"}
    atomic_write(path, repeatable(save(arrays, metadata=about)))
    return [path]


def _name(spectrum: GradientSpectrum) -> str:
    label = spectrum.label
    whole = label.tensor or label.group_id or "step"
    samples = "-".join(map(str, label.samples))
    parts = (f"{label.step:05d}", label.advantage, f"G{label.group_size}", whole, samples)
    return "/".join(part for part in parts if part)
