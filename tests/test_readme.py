"""The README is run: each `$ gradscope` line in the order in which a reader would type it, and its Python beside it."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from gradscope.__main__ import main
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ gradscope (.+)$", README, flags=re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.+?)^```$", README, flags=re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the fixtures that the README names."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(REPOSITORY / "fixtures", folder / "fixtures")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_works_as_printed(
    command: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    code = main(shlex.split(command))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    if not command.startswith("train"):
        assert captured.out.strip()


@pytest.mark.parametrize("snippet", PYTHON)
def test_each_snippet_works_on_the_same_run(snippet: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    exec(compile(snippet, "README.md", "exec"), {})


def test_the_readme_has_commands_and_snippets() -> None:
    assert len(COMMANDS) >= 10
    assert len(PYTHON) >= 5


def test_the_install_commands_are_the_ones_that_ci_runs() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert "pip install -c constraints.txt -e '.[test]' && pytest" in README
    assert "-c constraints.txt -e '.[test]'" in script
    assert re.search(r"^pytest$", script, flags=re.MULTILINE)
