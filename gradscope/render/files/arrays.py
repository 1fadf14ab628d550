"""Arrays that are too long for a table, as safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from gradscope.results.rank import GradientSpectrum, RankReport
from gradscope.writing import atomic_write, repeatable


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
