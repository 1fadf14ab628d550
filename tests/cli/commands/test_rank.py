from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gradscope.render.terminal.names import choices_of
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


def test_a_wrong_table_is_refused_before_anything_is_read(cli: Cli) -> None:
    done = cli("rank", "no-such-run", "--show", "signal,base")
    assert (done.code, done.out) == (2, "")
    assert "error: --show knows no 'base'." in done.err
    assert f"Write --show with any of {', '.join(choices_of('rank'))}" in done.err


@pytest.mark.slow
def test_the_answer_fits_a_screen_and_the_next_command_works(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    done = cli("rank", tiny_run, "--step", "1,2", "--group-size", "2", "--output", tmp_path / "out")
    lines = done.out.splitlines()
    assert lines[0].startswith(("At step ", "No group "))
    assert len(lines) <= 40
    commands = [line.removeprefix("$ gradscope ") for line in lines if line.startswith("$ ")]
    assert commands == [f"rank {tiny_run} --step 1,2 --group-size 2 --show all", "explain effective_rank"]
    again = cli(*shlex.split(commands[0]))
    assert again.code == 0
    assert again.out.startswith(lines[0])
    assert "the baseline of" in again.out


@pytest.mark.slow
def test_rank_by_weight_draws_the_layers(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    done = cli("rank", tiny_run, "--step", "2", "--rows", "weight", "--show", "engine", "--output", tmp_path / "out")
    assert done.code == 0
    assert "A matrix row is an output of one weight matrix" in done.out
    assert (tmp_path / "out" / "rank_layers.png").is_file()
