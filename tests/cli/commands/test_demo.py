import shlex
from pathlib import Path

import pytest

import gradscope.__main__
from gradscope.cli.app import command
from gradscope.cli.commands.demo import _tour
from gradscope.training.config import TrainConfig
from tests.cli.conftest import Cli, Done


def run_demo(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, *arguments: str, failing: str | None = None
) -> tuple[Done, list[list[str]]]:
    """The demo without the commands inside, which are recorded; one may fail."""
    calls: list[list[str]] = []

    def record(call: list[str]) -> int:
        calls.append(call)
        return 2 if call[0] == failing else 0

    monkeypatch.setattr(gradscope.__main__, "main", record)
    return cli("demo", *arguments), calls


def test_the_tour_runs_as_printed_and_leaves_a_page(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done, calls = run_demo(cli, monkeypatch, "tour")
    lines = done.out.splitlines()
    assert (done.code, lines[-1]) == (0, "All of it on one page, for a browser: tour/report.html")
    commands = ["train", "degeneracy", "passk", "replay", "rank", "rank", "claims", "check", "report"]
    assert [call[0] for call in calls] == commands
    assert [shlex.split(line.removeprefix("$ "))[1:] for line in lines if line.startswith("$ ")] == calls
    outputs = [call[call.index("--output") + 1] for call in calls if "--output" in call]
    assert outputs == ["tour/run", "tour/report.html"]


def test_the_tour_ends_where_a_command_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done, calls = run_demo(cli, monkeypatch, str(tmp_path), failing="passk")
    assert done.code == 2
    assert [call[0] for call in calls] == ["train", "degeneracy", "passk"]
    assert "on one page" not in done.out


def test_nothing_is_laid_over_a_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done, calls = run_demo(cli, monkeypatch, str(tmp_path))
    assert (done.code, done.out, calls) == (2, "", [])
    assert "is already there" in done.err
    done, calls = run_demo(cli, monkeypatch, str(tmp_path), "--force")
    assert done.code == 0
    assert all(call[-1] == "--force" for call in calls)


def test_every_command_of_the_tour_parses_and_asks_for_steps_whose_weights_the_default_run_keeps() -> None:
    config, steps = TrainConfig(), set[int]()
    for _, (name, *arguments) in _tour(Path("tour")):
        with command().commands[name].make_context(name, [*arguments]) as context:
            assert context.params
        steps |= {
            int(step)
            for index, word in enumerate(arguments)
            if word == "--step"
            for step in arguments[index + 1].split(",")
        }
    assert steps
    assert not [step for step in steps if (step - 1) % config.checkpoint_every or step > config.steps]
