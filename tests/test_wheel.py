"""The wheel in a bare environment: logs are read without PyTorch, and what needs it says how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow
LOGS = REPOSITORY / "fixtures" / "logs"
BARE = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'peft', 'trl'))); "
RUN = (
    f"{BARE}import gradscope; from gradscope.__main__ import main; "
    "print(gradscope.__file__, file=sys.stderr); sys.exit(main())"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, built from a copy of the sources, was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        REPOSITORY / "gradscope", folder / "source" / "gradscope", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "install", *offline, "--target", folder / "site", folder / "source"], check=True)
    return folder / "site"


def run(site: Path, *arguments: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "80"}
    command = [sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False)
    assert str(site) in done.stderr.splitlines()[0]
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("degeneracy", str(LOGS / "trl")),
        ("passk", str(LOGS / "samples_rows.jsonl"), "--k", "1"),
        ("check", str(LOGS / "trl"), "--require", "reward >= 0"),
        ("report", str(LOGS / "trl"), "--no-gradients", "--output", "page.html", "--force"),
        ("report", str(LOGS / "trl"), "--output", "page.html", "--force"),
        ("claims", str(LOGS / "trl"), "--no-gradients"),
        ("claims", str(LOGS / "trl")),
        ("compare", str(LOGS / "trl"), str(LOGS / "generic.csv")),
        ("reduce", str(LOGS / "trl"), "-o", "parts"),
        ("spike", str(LOGS / "metrics" / "trainer_state.json")),
        ("explain", "effective_rank"),
        ("config",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_logs_need_no_torch(site: Path, arguments: tuple[str, ...]) -> None:
    code, out, err = run(site, *arguments)
    assert code == 0, err
    assert out.strip()


GRADIENTS = "Gradients need torch, which is not installed."
HINT = "pip install 'gradscope[gradients]'"


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("replay", ()),
        ("rank", ()),
        ("check", ("--require", "effective_rank >= 1")),
        ("compare", (str(LOGS / "generic.csv"), "--gradients")),
        *((command, ()) for command in ("report", "claims")),
    ],
)
def test_gradients_say_what_to_install(site: Path, tmp_path: Path, command: str, more: tuple[str, ...]) -> None:
    log = shutil.copytree(LOGS / "trl", tmp_path / "trl")
    if command in ("report", "claims"):  # which answer without gradients where there are no weights either
        (log / "checkpoint-1").mkdir()
        for name in ("model.safetensors", "config.json"):
            shutil.copy(REPOSITORY / "gradscope" / "training" / "embedded" / name, log / "checkpoint-1")
    code, _, err = run(site, command, str(log), *more)
    assert code == 2, err
    assert f"error: {GRADIENTS}" in err
    assert f"hint: {HINT}" in err
    assert ("--no-gradients" in err) == (command in ("report", "claims"))


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        ("gradscope.measure_rank(LOG)", GRADIENTS, HINT),
        ("gradscope.replay_run(LOG)", GRADIENTS, HINT),
        ("gradscope.measure_rank(LOG, rows='update')", "An update needs two checkpoints of one kind", None),
        (
            "from gradscope.training import GradscopeCallback",
            "Recording needs torch, which is not installed.",
            "pip install 'gradscope[train]'",
        ),
    ],
)
def test_functions_end_in_an_error_of_ours(site: Path, call: str, message: str, hint: str | None) -> None:
    code = (
        f"{BARE}import gradscope; from gradscope.errors import GradscopeError\nLOG = {str(LOGS / 'trl')!r}\n"
        f"try:\n    {call}\nexcept GradscopeError as error:\n    print(error.message, error.hint, sep='|')"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=site, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(message), done.stderr
    assert hint is None or done.stdout.endswith(f"|{hint}\n")
