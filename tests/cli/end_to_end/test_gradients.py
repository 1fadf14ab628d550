from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.contract import missing_fields


def test_a_run_replays_from_its_own_folder(cli: Cli, tiny_run: Path) -> None:
    done = cli("replay", tiny_run, "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert missing_fields("replay", document) == []
    assert document["result"]["verdict"] == "match"
    assert [step["verdict"] for step in document["result"]["steps"]] == ["match", "match"]


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


def test_rank_by_weight_draws_the_layers(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    done = cli("rank", tiny_run, "--step", "2", "--rows", "weight", "--output", tmp_path / "out")
    assert done.code == 0
    assert "A matrix row is an output of one weight matrix" in done.out
    assert (tmp_path / "out" / "rank_layers.png").is_file()


def test_check_reaches_the_gradients(cli: Cli, tiny_run: Path) -> None:
    requirements = ("replay_grad_norm_error <= 1e-5", "effective_rank >= 1", "pass@4 >= 0")
    done = cli("check", tiny_run, *(word for text in requirements for word in ("--require", text)))
    assert (done.code, done.out.splitlines()[0]) == (0, "Check: pass")


def test_a_run_is_never_trained_over_another(cli: Cli, tiny_run: Path) -> None:
    before = sorted(path.name for path in tiny_run.rglob("*"))
    done = cli("train", "--output", tiny_run)
    assert (done.code, done.out) == (2, "")
    assert "--force" in done.err
    assert sorted(path.name for path in tiny_run.rglob("*")) == before


def test_a_run_repeats_from_its_manifest(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    done = cli("train", "--config", tiny_run / "manifest.json", "--output", tmp_path / "again")
    assert done.code == 0
    assert f"wrote the run {tmp_path / 'again'}" in done.err
    first, again = (folder / "rollouts" / "step_00002.parquet" for folder in (tiny_run, tmp_path / "again"))
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rank", "--rows", "tokens"), "'tokens' is not one of"),
        (("rank", "--device", "tpu"), "'tpu' is not one of"),
        (("rank", "--step", "one"), "is not a step"),
        (("rank", "--advantage", "gpro"), "grpo"),
        (("replay", "--tolerance", "small"), "--tolerance"),
        (("replay", "--model", "no/such/model/here", "--dtype", "float"), "'float' is not one of"),
    ],
)
def test_usage_errors_exit_2_with_a_next_step(cli: Cli, tiny_run: Path, arguments: tuple[str, ...], words: str) -> None:
    command, *options = arguments
    done = cli(command, tiny_run, *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "hint: " in done.err
