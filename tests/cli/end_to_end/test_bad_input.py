"""Bad input: what, where, next step, exit 2, no traceback, and nothing written."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, write_rows


def assert_refused(cli: Cli, words: str, *arguments: str | Path) -> None:
    output = Path(str(arguments[1])).parent / "results"
    done = cli(*arguments, "--output", output)
    assert (done.code, done.out) == (2, ""), done.err
    first, *rest = done.err.splitlines()
    assert first.startswith("error: ")
    assert words in first
    assert "Traceback" not in done.err
    assert [line for line in rest if line.startswith("hint: ")] == rest[-1:]
    assert not output.exists()


ANALYSES = ("degeneracy", "passk", "rank", "replay")


@pytest.mark.parametrize("command", ANALYSES)
def test_a_missing_and_an_empty_folder(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        assert_refused(cli, str(tmp_path / name), command, tmp_path / name)


@pytest.mark.parametrize("command", ANALYSES)
def test_an_unknown_format(cli: Cli, log: Path, command: str) -> None:
    assert_refused(cli, "'tlr'", command, log, "--reader", "tlr")


@pytest.mark.parametrize("command", ["degeneracy", "rank", "replay"])
def test_a_truncated_parquet(cli: Cli, tiny_run: Path, tmp_path: Path, command: str) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    step = tmp_path / "run" / "rollouts" / "step_00002.parquet"
    step.write_bytes(step.read_bytes()[:-100])
    done = cli(command, tmp_path / "run")
    assert done.code == (1 if command == "replay" else 2)
    assert done.out
    assert f"{step.name} is damaged" in done.err
    (tmp_path / "run" / "rollouts" / "step_00001.parquet").write_bytes(b"PAR1")
    assert_refused(cli, "step_00001.parquet is damaged", command, tmp_path / "run")


def test_rewards_that_are_not_numbers_are_set_aside_and_counted(cli: Cli, tmp_path: Path) -> None:
    rewards = {"whole": (1, 0), "holed": (1, 0, None, "x")}
    rows: list[dict[str, object]] = [
        {"prompt_id": name, "step": 1, "reward": reward} for name in rewards for reward in rewards[name]
    ]
    log = write_rows(tmp_path / "log.jsonl", rows)
    log.write_text(log.read_text() + '{"prompt_id": "holed", "step": 1, "reward": NaN}\n')
    done = cli("degeneracy", log, "--json")
    assert done.code == 0
    result = json.loads(done.out)["result"]
    assert result["num_rollouts"] == 2
    assert result["quarantined"]["num_rows"] == 3


def test_groups_of_unequal_size_are_said(cli: Cli, tmp_path: Path) -> None:
    sizes = {"a": 2, "b": 4}
    rows: list[dict[str, object]] = [
        {"prompt_id": name, "step": 1, "reward": sample % 2} for name, size in sizes.items() for sample in range(size)
    ]
    done = cli("degeneracy", write_rows(tmp_path / "log.jsonl", rows))
    assert done.code == 0
    assert "groups of unequal size" in done.out


def test_a_log_without_a_model_has_no_gradients(cli: Cli, log: Path) -> None:
    done = cli("rank", log)
    assert done.code in {0, 2}
    assert "Traceback" not in done.err
    assert "weights" in done.out + done.err


def test_a_run_configuration_that_is_no_json(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "args.json").write_text("{")
    assert_refused(cli, "args.json", "replay", tmp_path / "run", "--run-config", tmp_path / "args.json")
    assert_refused(cli, "none.json", "replay", tmp_path / "run", "--run-config", tmp_path / "none.json")


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [({"stepz": 3}, (), ("'stepz'", "'steps'")), ({}, ("--advantage", "gropo"), ("gropo", "grpo"))],
)
def test_a_training_that_cannot_be_begins_nothing(
    cli: Cli, tmp_path: Path, config: dict[str, int], options: tuple[str, ...], words: tuple[str, str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = cli("train", "--config", tmp_path / "config.json", *options, "--output", tmp_path / "run")
    assert (done.code, done.out) == (2, "")
    assert all(word in done.err for word in words)
    assert not (tmp_path / "run").exists()
