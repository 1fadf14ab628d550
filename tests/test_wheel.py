"""The wheel in a bare environment: logs are read without PyTorch, and what needs it says how to get it."""

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import LOGS, REPOSITORY

pytestmark = pytest.mark.slow
LOG = str(LOGS / "trl")
COMMANDS: list[list[str]] = [
    ["--version"],
    ["degeneracy", LOG],
    ["passk", str(LOGS / "samples_rows.jsonl"), "--k", "1"],
    ["check", LOG, "--require", "reward >= 0"],
    ["report", LOG, "--no-gradients", "--output", "page.html", "--force"],
    ["report", LOG, "--output", "page.html", "--force"],
    ["claims", LOG, "--no-gradients"],
    ["claims", LOG],
    ["compare", LOG, str(LOGS / "generic.csv")],
    ["spike", str(LOGS / "metrics" / "trainer_state.json")],
    ["explain", "effective_rank"],
    ["config"],
    ["reduce", LOG, "-o", "parts"],
    ["degeneracy", LOG, "--output", "charts"],  # last, for it alone loads matplotlib
]
NEED_TORCH: list[list[str]] = [
    ["replay", LOG],
    ["rank", LOG],
    ["check", LOG, "--require", "effective_rank >= 1"],
    ["compare", LOG, str(LOGS / "generic.csv"), "--gradients"],
    *([command, "with-weights"] for command in ("report", "claims")),  # which answer of a log alone without gradients
]
GRADIENTS = "Gradients need torch, which is not installed."
HINT = "pip install 'gradscope[gradients]'"
CALLS = {
    "gradscope.measure_rank(LOG)": (GRADIENTS, HINT),
    "gradscope.replay_run(LOG)": (GRADIENTS, HINT),
    "gradscope.measure_rank(LOG, rows='update')": ("An update needs two checkpoints of one kind", None),
    "from gradscope.training import GradscopeCallback": (
        "Recording needs torch, which is not installed.",
        "pip install 'gradscope[train]'",
    ),
}
RUN = """
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "peft", "trl")))
import gradscope
from gradscope.__main__ import main
from gradscope.errors import GradscopeError

log, commands, calls = json.load(sys.stdin)
done, errors = [], []
for arguments in commands:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    done.append((code, out.getvalue(), err.getvalue(), [name for name in sys.modules if sys.modules[name]]))
for call in calls:
    try:
        exec(call, {"gradscope": gradscope, "LOG": log})
    except GradscopeError as error:
        errors.append((error.message, error.hint))
json.dump({"file": gradscope.__file__, "commands": done, "calls": errors}, sys.stdout)
"""
"""All of them by one process, for to start one takes longer than most."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the wheel, built from a copy of the sources and installed into a folder, says of each command and call."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        REPOSITORY / "gradscope", folder / "source" / "gradscope", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder / "source")
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "install", *offline, "--target", site, folder / "source"], check=True)
    (shutil.copytree(LOG, site / "with-weights") / "checkpoint-1").mkdir()
    for name in ("model.safetensors", "config.json"):
        embedded = REPOSITORY / "gradscope" / "training" / "embedded" / name
        shutil.copy(embedded, site / "with-weights" / "checkpoint-1")
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "80"},
        input=json.dumps([LOG, [*COMMANDS, *NEED_TORCH], list(CALLS)]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["file"].startswith(str(site))
    return document


@pytest.mark.parametrize("index", range(len(COMMANDS)), ids=lambda index: COMMANDS[index][0])
def test_logs_need_no_torch(outputs: dict[str, Any], index: int) -> None:
    code, out, err, loaded = outputs["commands"][index]
    assert code == 0, err
    assert out.strip()
    if "charts" in COMMANDS[index]:
        return
    assert {"matplotlib", "duckdb", "datasets", "accelerate", "fsspec", "aiohttp"}.isdisjoint(loaded)
    assert "pandas" not in loaded or COMMANDS[index][0] == "reduce"  # for which pyarrow looks whether there is pandas


@pytest.mark.parametrize("index", range(len(NEED_TORCH)), ids=lambda index: NEED_TORCH[index][0])
def test_gradients_say_what_to_install(outputs: dict[str, Any], index: int) -> None:
    code, _, err, _ = outputs["commands"][len(COMMANDS) + index]
    assert code == 2, err
    assert f"error: {GRADIENTS}" in err
    assert f"hint: {HINT}" in err
    assert ("--no-gradients" in err) == (NEED_TORCH[index][0] in ("report", "claims"))


def test_functions_end_in_an_error_of_ours(outputs: dict[str, Any]) -> None:
    assert len(outputs["calls"]) == len(CALLS)
    for (message, hint), (expected, expected_hint) in zip(outputs["calls"], CALLS.values(), strict=True):
        assert message.startswith(expected)
        assert expected_hint is None or hint == expected_hint
