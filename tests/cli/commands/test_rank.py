from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.contract import missing_fields


@pytest.mark.slow
def test_rank_writes_gram_spectra_and_figures(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    arguments = ("--step", "1", "--advantage", "logged", "--advantage", "sign", "--group-size", "2")
    done = cli("rank", tiny_run, *arguments, "--output", folder, "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert missing_fields("rank", document) == []
    result = document["result"]
    assert {point["advantage"] for point in result["curve"]} == {"logged", "sign"}
    assert result["gram"] == {"1": "gram_step_00001.safetensors"}
    assert (folder / "gram_step_00001.safetensors").is_file()
    assert {path.name for path in folder.glob("*.png")} == {
        "rank_cosines.png",
        "rank_curve.png",
        "rank_nulls.png",
        "rank_shares.png",
        "rank_sizes.png",
        "rank_spectrum.png",
    }
    assert json.loads((folder / "rank.json").read_text()) == document


@pytest.mark.slow
def test_rank_by_weight_draws_the_layers(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    done = cli("rank", tiny_run, "--step", "2", "--rows", "weight", "--output", tmp_path / "out")
    assert done.code == 0
    assert "A matrix row is an output of one weight matrix" in done.out
    assert (tmp_path / "out" / "rank_layers.png").is_file()
