import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.slow  # a run is trained for it


def test_a_run_measured_by_tokens(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    arguments = ("--rows", "token", "--step", "1", "--advantage", "logged", "--advantage", "sign")
    done = cli("rank", tiny_run, *arguments, "--output", tmp_path / "out", "--json")
    assert done.code == 0
    result = json.loads(done.out)["result"]
    assert {spectrum["tokens"]["method"] for spectrum in result["spectra"]} == {"exact"}
    assert {point["advantage"] for point in result["token_curve"]} == {"logged", "sign"}
    assert result["curve"] == []
    assert (tmp_path / "out" / "rank_token_curve.csv").is_file()
    (moved,) = result["logprob_changes"]
    assert (moved["first"], moved["last"]) == (0, 1)
    assert moved["difference"]["value"] == pytest.approx(moved["positive"]["value"] - moved["negative"]["value"])
    assert (tmp_path / "out" / "rank_logprob_changes.csv").is_file()
    assert (tmp_path / "out" / "rank_spectrum.png").is_file()
    table = cli("rank", tiny_run, *arguments, "--max-tokens", "3", "--seed", "1", "--show", "engine")
    assert table.code == 0
    assert "A matrix row is the gradient of one token of a group" in table.out
    assert "of the tokens were measured, drawn at random" in " ".join(table.out.split())


def test_all_tokens_sketched(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    arguments = ("rank", tiny_run, "--rows", "token", "--step", "1", "--advantage", "logged", "--sketch", "512")
    assert "Rows were sketched" in cli(*arguments, "--output", tmp_path / "out").out
    result = json.loads((tmp_path / "out" / "rank.json").read_text())["result"]
    assert {spectrum["tokens"]["method"] for spectrum in result["spectra"]} == {"sketch"}
    live = [spectrum["tokens"] for spectrum in result["spectra"] if spectrum["effective_rank"]["value"] is not None]
    assert live
    assert all((1 / 512) ** 0.5 < tokens["energy_error"] <= (2 / 512) ** 0.5 for tokens in live)
