from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import load_file

from gradscope.render.files.arrays import write_spectra
from tests.render import examples


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
