from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.render.files.document import document_of
from gradscope.render.files.write import write_files
from tests.render import examples


@pytest.mark.slow
def test_everything_that_a_result_gives_is_written(tmp_path: Path) -> None:
    report = examples.rank_report()
    written = write_files(report, document_of(report), tmp_path)
    assert [path.name for path in written] == [
        "rank.json",
        "rank_curve.csv",
        "rank_spectra.csv",
        "rank_steps.csv",
        "rank_spectra.safetensors",
        "rank_curve.png",
        "rank_curve.svg",
        "rank_sizes.png",
        "rank_sizes.svg",
        "rank_nulls.png",
        "rank_nulls.svg",
        "rank_spectrum.png",
        "rank_spectrum.svg",
        "rank_sparsity.png",
        "rank_sparsity.svg",
    ]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    assert json.loads((tmp_path / "rank.json").read_text())["schema"] == "gradscope/rank"
