"""The README and the tour are run: each `$ gradscope` line as a reader would type it, and the Python beside it."""

import ast
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from gradscope.__main__ import main
from tests.conftest import REPOSITORY

README, TOUR, HOWTO = (
    (REPOSITORY / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tour.md", "docs/howto.md")
)
PAGES = f"{TOUR}\n{HOWTO}\n{README.replace('my-run', 'tour')}"
"""What the tour trains is the reader's own run, and a grid by the forkserver; what two pages say is run once."""
SMALLER = {
    "train": ["--num-prompts", "4", "--group-size", "4", "--heldout-prompts", "6"],
    "claims tour": ["--no-gradients"],
    "rank tour --step 1,17": ["--advantage", "dr_grpo"],
    "rank tour --step 17 --rows token": ["--max-tokens", "16"],
    "report tour": ["--step", "17", "--max-tokens", "4"],
    "report tour --output": ["--no-gradients"],
}
"""What commands that begin so get as well: they then take a third of the time."""
COMMANDS = list(dict.fromkeys(re.findall(r"^\$ gradscope (.+)$", PAGES, flags=re.MULTILINE)))
NOTEBOOK = json.loads((REPOSITORY / "docs" / "first_finding.ipynb").read_text(encoding="utf-8"))
PYTHON = re.findall(r"^```python\n(.+?)^```$", PAGES, flags=re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the fixtures that the pages name."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(REPOSITORY / "fixtures", folder / "fixtures")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_works_as_printed(
    command: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    name, *arguments = shlex.split(command)
    steps = ["--steps", "2"] if "grid" in arguments and name == "train" else []
    smaller = next((more for beginning, more in reversed(SMALLER.items()) if command.startswith(beginning)), [])
    code = main([name, *arguments, *smaller, *steps])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    if name != "train":
        assert captured.out.strip()


@pytest.mark.parametrize("snippet", PYTHON)
def test_each_snippet_works_on_the_same_run(snippet: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    exec(compile(snippet, "README.md", "exec"), {})


def test_the_output_that_the_readme_shows_is_what_the_command_prints(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers are those of another run; the words, and what stands in a line, are not."""
    monkeypatch.chdir(desk)
    monkeypatch.setenv("COLUMNS", "100")
    shown = re.findall(r"^```text\n(.+?)^```$", README, flags=re.MULTILINE | re.DOTALL)[0]
    assert main(["degeneracy", "tour"]) == 0
    printed = capsys.readouterr().out
    assert [line.strip().split("  ")[0] for line in _table(shown)] == [
        line.strip().split("  ")[0] for line in _table(printed)
    ]


def _table(screen: str) -> list[str]:
    """The lines below the head of a screen's table, their numbers aside."""
    _, _, below = screen.partition("──\n")
    return re.sub(r"[0-9][0-9.,]*", "0", below.partition("\n\n")[0]).splitlines()


def test_the_notebook_runs_and_shows_what_it_shows(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell in turn; what a cell ends with is of the kind that the notebook holds, numbers aside."""
    monkeypatch.chdir(desk)
    names: dict[str, object] = {}
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        *body, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(body, []), "notebook", "exec"), names)
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), "notebook", "exec"), names)
            continue
        shown = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
        (output,) = cell["outputs"]
        assert repr(shown).split()[0] == "".join(output["data"]["text/plain"]).split()[0]
        for kind, method in (("text/html", "_repr_html_"), ("image/png", "_repr_png_")):
            made = getattr(shown, method)() if hasattr(shown, method) else None
            assert (kind in output["data"]) == bool(made)
    assert len(code) >= 5


def test_the_readme_has_commands_and_snippets() -> None:
    assert len(COMMANDS) >= 10
    assert len(PYTHON) >= 5
    assert README.count("\n") < 130


def test_the_install_commands_are_the_ones_that_ci_runs() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert "pip install -c constraints.txt -e '.[test]' && pytest" in README
    assert "-c constraints.txt -e '.[test]'" in script
    assert re.search(r"^pytest$", script, flags=re.MULTILINE)
