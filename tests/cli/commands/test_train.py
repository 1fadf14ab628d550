"""The options of `train` that make a grid; the runs themselves are tests/training's."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from gradscope.training.config import TrainConfig
from tests.cli.conftest import Cli
from tests.training.interrupted import assert_same_run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been trained."""
    calls: list[Any] = []

    def train(config: TrainConfig, **how: Any) -> Path:
        calls.append(config)
        return Path(config.output)

    def train_grid(cells: tuple[TrainConfig, ...], **how: Any) -> None:
        calls.append((cells, how["num_processes"]))

    monkeypatch.setattr("gradscope.training.train.train", train)
    monkeypatch.setattr("gradscope.training.grid.train_grid", train_grid)
    monkeypatch.setattr("gradscope.cli.commands.train._show_answer", lambda *run: None)
    return calls


def test_one_of_each_is_one_run(cli: Cli, asked: list[Any]) -> None:
    assert cli("train", "--advantage", "sign", "--learning-rate", "1e-4", "--seed", "3", "--output", "x").code == 0
    assert asked == [TrainConfig(output="x", advantage="sign", learning_rate=1e-4, seed=3)]


def test_arguments_of_vllm_are_json(cli: Cli, asked: list[Any]) -> None:
    assert cli("train", "--vllm", '{"mode": "server", "server_port": 8001}').code == 0
    assert asked == [TrainConfig(vllm={"mode": "server", "server_port": 8001})]
    done = cli("train", "--vllm", "mode=server")
    assert (done.code, done.err.startswith("error: --vllm is not JSON: ")) == (2, True)
    assert cli("train", "--vllm", "8001").err.startswith("error: the configuration has vllm = 8001, which does not fit")


def test_code_runs_only_where_it_is_named(cli: Cli, asked: list[Any], tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"advantage": "my.py:own"}')
    refused = cli("train", "--config", str(settings))
    assert refused.code == 2
    assert "The settings name my.py:own, which is code in a file" in refused.err
    assert asked == []
    assert cli("train", "--config", str(settings), "--advantage", "my.py:own").code == 0
    assert asked == [TrainConfig(advantage="my.py:own")]


def test_several_of_anything_are_a_grid(cli: Cli, asked: list[Any]) -> None:
    for arguments in (
        ("--advantage", "grpo", "--advantage", "sign"),
        ("--learning-rate", "1e-4,2e-4"),
        ("--seeds", "3-4"),
    ):
        done = cli("train", *arguments, "--output", "g", "--jobs", "2")
        assert (done.code, done.out) == (0, "\n$ gradscope compare g\n")
    shapes = [[(c.advantage, c.learning_rate, c.seed) for c in cells] for cells, jobs in asked if jobs == 2]
    rate = TrainConfig().learning_rate
    assert shapes == [
        [("grpo", rate, 0), ("sign", rate, 0)],
        [("grpo", 1e-4, 0), ("grpo", 2e-4, 0)],
        [("grpo", rate, 3), ("grpo", rate, 4)],
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seed", "1", "--seeds", "0-4"), "--seed and --seeds exclude each other"),
        (("--jobs", "2"), "--jobs is for a grid, and this is one run"),
        (("--seeds", "four"), "--seeds 'four' is not a whole number"),
        (("--learning-rate", "fast"), "--learning-rate is 'fast', which is no number"),
        (("--learning-rate", "1e-4,-1"), "learning_rate is -1.0; it must be above zero"),
        (("--advantage", "grpo,grpo"), "grpo is given twice"),
    ],
)
def test_what_makes_no_grid(cli: Cli, asked: list[Any], arguments: tuple[str, ...], words: str) -> None:
    done = cli("train", *arguments)
    assert (done.code, done.out, asked) == (2, "", [])
    assert done.err.startswith(f"error: {words}")
    assert "\nhint: " in done.err


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
    lines = done.out.splitlines()
    assert lines[0].startswith("after.jsonl against before.jsonl: ")
    assert "groups (" in done.out
    commands = [line.removeprefix("$ gradscope ") for line in lines if line.startswith("$ ")]
    assert [command.split()[0] for command in commands] == ["degeneracy"]
    assert cli(*shlex.split(commands[0])).code == 0
    assert_same_run(tmp_path / "again", tiny_run)
