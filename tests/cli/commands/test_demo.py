import shlex
from pathlib import Path

import pytest

import gradscope.__main__
from gradscope.cli.app import command
from gradscope.cli.commands.demo import _tour
from gradscope.training.config import TrainConfig
from tests.cli.conftest import Cli


class Recorder:
    """Stands for ``main``: keeps what it is called with and ends as it is told."""

    def __init__(self, failing: str | None = None) -> None:
        self.calls: list[list[str]] = []
        self._failing = failing

    def __call__(self, arguments: list[str]) -> int:
        self.calls.append(arguments)
        return 2 if arguments[0] == self._failing else 0


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder()


def run_demo(cli: Cli, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, *arguments: str) -> tuple[int, str, str]:
    """The demo itself runs through the real ``main``; the commands inside it are recorded."""
    real = gradscope.__main__.main

    def first_real(argv: list[str]) -> int:
        return real(argv) if argv[0] == "demo" else recorder(argv)

    monkeypatch.setattr(gradscope.__main__, "main", first_real)
    return cli("demo", *arguments)


def test_the_tour_runs_every_command_as_it_prints_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_demo(cli, monkeypatch, recorder, "tour")
    assert (code, out.splitlines()[-1]) == (0, "All of it on one page, for a browser: tour/report.html")
    commands = ["train", "degeneracy", "passk", "replay", "rank", "rank", "claims", "check", "report"]
    assert [call[0] for call in recorder.calls] == commands
    printed = [shlex.split(line.removeprefix("$ "))[1:] for line in out.splitlines() if line.startswith("$ ")]
    assert printed == recorder.calls
    outputs = [call[call.index("--output") + 1] for call in recorder.calls if "--output" in call]
    assert outputs == ["tour/run", "tour/report.html"]


def test_the_tour_ends_where_a_command_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(failing="passk")
    code, out, _ = run_demo(cli, monkeypatch, recorder, str(tmp_path))
    assert code == 2
    assert [call[0] for call in recorder.calls] == ["train", "degeneracy", "passk"]
    assert "on one page" not in out


def test_nothing_is_laid_over_a_folder(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, out, err = run_demo(cli, monkeypatch, recorder, str(tmp_path))
    assert (code, out) == (2, "")
    assert "is already there" in err
    assert recorder.calls == []
    assert run_demo(cli, monkeypatch, recorder, str(tmp_path), "--force")[0] == 0
    assert all(call[-1] == "--force" for call in recorder.calls)


def test_every_command_of_the_tour_parses() -> None:
    commands = command().commands
    for _, (name, *arguments) in _tour(Path("tour")):
        with commands[name].make_context(name, arguments) as context:
            assert context.params


def test_the_tour_asks_for_steps_whose_weights_the_default_run_keeps() -> None:
    config = TrainConfig()
    words = [word for _, arguments in _tour(Path("tour")) for word in arguments]
    steps = {int(step) for index, word in enumerate(words) if word == "--step" for step in words[index + 1].split(",")}
    assert steps
    assert not [step for step in steps if (step - 1) % config.checkpoint_every or step > config.steps]
