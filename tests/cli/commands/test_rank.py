import json
import shlex
from pathlib import Path

import pytest

from gradscope.render.terminal.names import choices_of
from tests.cli.conftest import Cli


def test_rank_writes_gram_spectra_and_figures(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    arguments = ("--step", "1", "--advantage", "logged", "--advantage", "sign", "--group-size", "2")
    done = cli("rank", tiny_run, *arguments, "--output", folder, "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["schema"] == "gradscope/rank"
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
    assert "error: --show does not take 'base'." in done.err
    assert f"Write --show with any of {', '.join(choices_of('rank'))}" in done.err


@pytest.mark.usefixtures("no_figures")
def test_the_answer_fits_a_screen_and_the_next_command_works(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    options = ("--step", "1", "--group-size", "2", "--advantage", "logged,sign")
    lines = cli("rank", tiny_run, *options, "--output", tmp_path / "out").out.splitlines()
    assert lines[0].startswith(("At step ", "No group "))
    assert len(lines) <= 40
    commands = [line.removeprefix("$ gradscope ") for line in lines if line.startswith("$ ")]
    assert commands == [f"report {tiny_run} --step 1"]
    assert cli(*shlex.split(commands[0]), "--max-tokens", "0", "--output", tmp_path / "page.html").code == 0


def test_rank_by_weight_draws_the_layers(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    options = ("--step", "2", "--rows", "weight", "--advantage", "logged", "--show", "engine")
    done = cli("rank", tiny_run, *options, "--output", tmp_path / "out")
    assert done.code == 0
    assert "A matrix row is an output of one weight matrix" in done.out
    assert (tmp_path / "out" / "rank_layers.png").is_file()


@pytest.mark.usefixtures("no_figures")
def test_a_run_is_held_against_its_own_held_out_samples(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    common = ("rank", tiny_run, "--step", "1", "--advantage", "sign,dr_grpo", "--keep", tmp_path / "kept")
    heldout = ("--heldout", tiny_run, "--output", tmp_path / "out")
    done = cli(*common, *heldout)
    assert done.code == 0
    assert not (tmp_path / "kept").exists()
    assert "influence on held-out prompts" in done.out  # without --show: nobody pays for what is not shown
    result = json.loads((tmp_path / "out" / "rank.json").read_text())["result"]
    assert [(row["step"], row["advantage"]) for row in result["heldout"]] == [(1, "sign"), (1, "dr_grpo")]
    assert {row["num_heldout"] for row in result["heldout"]} <= {1, 2, 3, 4}
    assert f"in {tiny_run}" in result["heldout_notes"][0]
    assert len((tmp_path / "out" / "rank_heldout_influences.csv").read_text().splitlines()) > 2
    plain = json.loads(cli(*common, "--json").out)["result"]
    assert (result["spectra"], result["curve"]) == (plain["spectra"], plain["curve"])
    assert plain["heldout"] == plain["heldout_influences"] == plain["heldout_notes"] == []
    assert "influence on held-out prompts" not in cli(*common, *heldout[:2], "--show", "signal").out
