"""Commands by two processes: what one process prints and writes, once, and the same end."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Cli
from tests.gradients.launched import finish, start_processes

pytestmark = pytest.mark.slow  # a run is trained for it, and processes are started

RANK = ("--step", "1,2", "--advantage", "logged", "--group-size", "2")


def by_two(*arguments: object, timeout: float = 120) -> list[tuple[int, str, str]]:
    return finish(start_processes(2, "-m", "gradscope", *map(str, arguments)), timeout=timeout)


def singular_values(node: object) -> list[list[float]]:
    if isinstance(node, dict):
        own = node.get("singular_values")
        return [
            *([own] if isinstance(own, list) else []),
            *(v for each in node.values() for v in singular_values(each)),
        ]
    return [v for each in node for v in singular_values(each)] if isinstance(node, list) else []


def test_rank_prints_and_writes_once_what_one_process_does(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    alone = cli("rank", tiny_run, *RANK, "--json", "--output", tmp_path / "one")
    (main, other) = by_two("rank", tiny_run, *RANK, "--json", "--output", tmp_path / "two")
    assert (main[0], other) == (0, (0, "", ""))
    said = [err.replace("/two", "/one").splitlines() for err in (main[2], alone.err)]
    told = [[line for line in lines if not line.startswith("about ")] for lines in said]  # how long it takes differs
    assert told[0] == told[1]
    names = [
        sorted(str(file.relative_to(tmp_path / of)) for file in (tmp_path / of).rglob("*")) for of in ("one", "two")
    ]
    assert names[0] == names[1]
    assert not list(tmp_path.glob(".*"))
    one, two = (singular_values(json.loads(text)["result"]) for text in (alone.out, main[1]))
    assert len(one) == len(two) > 0
    for values, expected in zip(two, one, strict=True):
        # logits in slices and whole ones round differently
        np.testing.assert_allclose(values, expected, atol=5e-6 * max([*expected, 0.0]))


def test_other_commands_and_rows_say_what_one_process_says(cli: Cli, tiny_run: Path) -> None:
    for command in (
        ("claims", tiny_run, "--step", "1,2"),
        ("rank", tiny_run, "--step", "1", "--rows", "hidden", "--engine", "stream"),
    ):
        alone, (main, other) = cli(*command), by_two(*command)
        assert (main[0], other) == (alone.code, (alone.code, "", ""))
        assert "$ gradscope" not in main[1]  # the next command would need the launcher
        said = [text.partition("The gradient of a group has")[0] for text in (main[1], alone.out)]
        texts = [text.partition("\n$ gradscope")[0].rstrip().splitlines() for text in said]
        lines = [[line.split()[:2] for line in text if "tokens" not in line and "e-" not in line] for text in texts]
        assert lines[0] == lines[1]
        assert len(lines[0]) > 5


def test_a_report_is_written_once(tiny_run: Path, tmp_path: Path) -> None:
    (main, other) = by_two("report", tiny_run, "--step", "1", "--output", tmp_path / "report.html")
    assert (main[0], other) == (0, (0, "", ""))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "2 share this model" in (tmp_path / "report.html").read_text()  # rows of tokens


def test_rows_of_tokens_are_refused_once(tiny_run: Path) -> None:
    done = by_two("rank", tiny_run, "--step", "1", "--rows", "token")
    assert [code for code, _, _ in done] == [2, 2]
    assert sum("Rows of tokens are measured by one process, and 2 share this model." in err for _, _, err in done) == 1


def test_memory_that_runs_out_on_one_ends_both(tiny_run: Path) -> None:
    """As if one process had less memory than the other."""
    code = """
import os, sys, torch
from gradscope.gradients.processes import group
from gradscope.gradients.step import measure
group._SKEW = 1.0
def fails(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory")
if os.environ["RANK"] == "1":
    measure.exchanged_gram = fails
from gradscope.__main__ import run
run()
"""
    done = finish(start_processes(2, "-c", code, "rank", str(tiny_run), "--step", "1"), timeout=60)
    assert [code for code, _, _ in done] == [2, 2]
    assert "error: Memory ran out at" in done[1][2]
    assert "error" not in done[0][2]


def test_ctrl_c_keeps_finished_steps_and_the_same_command_goes_on(tiny_run: Path, tmp_path: Path) -> None:
    arguments = ("rank", str(tiny_run), *RANK, "--output", str(tmp_path / "out"))
    kept = tmp_path / ".out.unfinished" / "step_00001.safetensors"
    code = """
import sys, time
from gradscope.diagnostics.inputs import recomputed
measure = recomputed.measure_step
def slowly(prepared, **options):
    if prepared.step == 2:
        time.sleep(60)
    return measure(prepared, **options)
recomputed.measure_step = slowly
from gradscope.__main__ import run
run()
"""
    processes = start_processes(2, "-c", code, *arguments)
    until = time.monotonic() + 60
    while not kept.is_file() and time.monotonic() < until:
        time.sleep(0.1)
    for process in processes:  # as a terminal does
        process.send_signal(signal.SIGINT)
    done = finish(processes, timeout=60)
    assert [code for code, _, _ in done] == [130, 130]
    assert sum(err.count("interrupted") for _, _, err in done) == 1
    assert f"goes on from the 1 finished step in {kept.parent}" in done[0][2]

    (main, other) = by_two(*arguments)
    assert (main[0], other) == (0, (0, "", ""))
    assert "note: step 1 was finished before and is used again" in main[2]
    assert not kept.parent.exists()
