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
        ("explain", "effective_rank"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_logs_need_no_torch(site: Path, arguments: tuple[str, ...]) -> None:
    code, out, err = run(site, *arguments)
    assert code == 0, err
    assert out.strip()


@pytest.mark.parametrize("command", ["replay", "rank", "report"])
def test_gradients_say_what_to_install(site: Path, command: str) -> None:
    code, _, err = run(site, command, str(LOGS / "trl"))
    assert code == 2
    assert "Gradients need torch, which is not installed." in err
    assert "pip install 'gradscope[gradients]'" in err
    assert ("--no-gradients" in err) == (command == "report")
