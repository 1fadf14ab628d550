"""The files of a result: JSON, tidy CSV, arrays as safetensors, figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradscope.render.files.csv_tables import render_csv, tidy_tables
from gradscope.render.files.document import Report, command_of
from gradscope.results.envelope import render_json
from gradscope.results.rank import GradientSpectrum, RankReport


def write_files(result: Report, document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes everything that a result has to give.

    Args:
        result: What a command found.
        document: The result in its envelope.
        folder: An existing folder.

    Returns:
        The files, in the order of reading: document, tables, arrays, figures.
    """
    from gradscope.render.figures.save import save_figure
    from gradscope.render.figures_of import draw_figures

    path = folder / f"{command_of(result)}.json"
    path.write_text(render_json(document), encoding="utf-8")
    written = [path]
    for stem, rows in tidy_tables(result).items():
        table = folder / f"{stem}.csv"
        table.write_text(render_csv(rows), encoding="utf-8")
        written.append(table)
    if isinstance(result, RankReport) and result.spectra:
        written.append(_write_spectra(result, folder / "rank_spectra.safetensors"))
    for stem, figure in draw_figures(result).items():
        written += save_figure(figure, folder / stem)
    return written


def _write_spectra(result: RankReport, path: Path) -> Path:
    """One array of singular values per spectrum, named for what it is of."""
    import numpy as np
    from safetensors.numpy import save_file

    arrays = {_name(spectrum): np.asarray(spectrum.singular_values) for spectrum in result.spectra}
    save_file(arrays, path, metadata={"rows": result.rows, "values": "singular values, descending"})
    return path


def _name(spectrum: GradientSpectrum) -> str:
    whole = spectrum.label.tensor or spectrum.label.group_id or "step"
    samples = "-".join(str(sample) for sample in spectrum.label.samples)
    return "/".join(
        part
        for part in (
            f"{spectrum.label.step:05d}",
            spectrum.label.advantage,
            f"G{spectrum.label.group_size}",
            whole,
            samples,
        )
        if part
    )
