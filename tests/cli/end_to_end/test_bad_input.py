"""Bad input: what, where, next step, exit 2, no traceback, and nothing written."""

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


@pytest.mark.parametrize("command", ["degeneracy", "passk", "rank", "replay"])
def test_a_missing_and_an_empty_folder(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        assert_refused(cli, str(tmp_path / name), command, tmp_path / name)


@pytest.mark.parametrize("command", ["rank", "replay"])
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


def test_groups_of_unequal_size_are_said(cli: Cli, tmp_path: Path) -> None:
    sizes = {"a": 2, "b": 4}
    rows: list[dict[str, object]] = [
        {"prompt_id": name, "step": 1, "reward": sample % 2} for name, size in sizes.items() for sample in range(size)
    ]
    done = cli("degeneracy", write_rows(tmp_path / "log.jsonl", rows))
    assert done.code == 0
    assert "groups of unequal size" in done.out


def test_a_run_configuration_that_is_no_json(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "args.json").write_text("{")
    assert_refused(cli, "args.json", "replay", tmp_path / "run", "--run-config", tmp_path / "args.json")
    assert_refused(cli, "none.json", "replay", tmp_path / "run", "--run-config", tmp_path / "none.json")
