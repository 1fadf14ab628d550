"""The files of a result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from gradscope.render.files.document import document_of
from gradscope.render.files.write import write_files, write_spectra
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


def test_spectra_are_arrays_under_names_that_say_whose(tmp_path: Path) -> None:
    report = examples.rank_report()
    (path,) = write_spectra(report, tmp_path)
    arrays = load_file(path)
    assert len(arrays) == len(report.spectra)
    assert arrays["00001/logged/G8/step"].tolist() == list(report.spectra[-3].singular_values)
    assert arrays["00001/logged/G8/00001-000/0-1-2-3-4-5-6-7"].tolist() == list(report.spectra[0].singular_values)
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"rows": "rollout", "values": "singular values, descending"}


def test_spectra_of_weights_are_named_by_their_tensor(tmp_path: Path) -> None:
    (path,) = write_spectra(examples.weight_report(), tmp_path)
    assert "00041/logged/G20/model.layers.0.self_attn.q_proj.weight" in load_file(path)


def test_without_spectra_there_is_no_file(tmp_path: Path) -> None:
    assert write_spectra(replace(examples.rank_report(), spectra=()), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
