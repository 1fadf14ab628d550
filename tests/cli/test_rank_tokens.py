from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli


def test_a_run_measured_by_tokens(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    arguments = ("--rows", "token", "--step", "1", "--advantage", "logged", "--advantage", "sign")
    done = cli("rank", tiny_run, *arguments, "--output", tmp_path / "out", "--json")
    assert done.code == 0
    result = json.loads(done.out)["result"]
    assert {spectrum["tokens"]["method"] for spectrum in result["spectra"]} == {"exact"}
    assert {point["advantage"] for point in result["token_curve"]} == {"logged", "sign"}
    assert result["curve"] == []
    assert (tmp_path / "out" / "rank_token_curve.csv").is_file()
    assert (tmp_path / "out" / "rank_spectrum.png").is_file()
    table = cli("rank", tiny_run, *arguments, "--tokens", "3", "--seed", "1")
    assert table.code == 0
    assert "A matrix row is the gradient of one token of a group" in table.out
    assert "of the tokens were measured, drawn at random" in " ".join(table.out.split())
