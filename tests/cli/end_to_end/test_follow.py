import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.__main__ import INTERRUPTED
from tests.cli.conftest import Cli


@pytest.mark.slow
def test_a_line_a_step_then_the_report_once_the_log_rests(cli: Cli, log: Path, tmp_path: Path) -> None:
    done = cli("degeneracy", log, "--follow", "--every", "0.01", "--idle", "0.05", "--output", tmp_path / "out")
    assert done.code == 0
    head, *lines = done.out.splitlines()
    assert head.split() == ["step", "groups", "degenerate", "[95", "%]", "fail", "pass", "tied", "p"]
    assert [line.split()[:3] for line in lines[:2]] == [["1", "3", "0.667"], ["2", "3", "0.667"]]
    assert all(len(line) <= 80 for line in (head, *lines[:2]))
    assert done.out.count("4 of 6 groups (66.7 %") == 1
    assert json.loads((tmp_path / "out" / "degeneracy.json").read_text())["result"]["num_groups"] == 6


@pytest.mark.slow
def test_ctrl_c_ends_it_with_130(log: Path) -> None:
    command = [sys.executable, "-m", "gradscope", "degeneracy", str(log), "--follow", "--every", "0.05"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert [process.stdout.readline().split()[0] for _ in range(3)] == ["step", "1", "2"]
    with log.open("a") as stream:
        stream.write("".join(json.dumps({"prompt_id": "hard", "step": 3, "reward": 0}) + "\n" for _ in range(4)))
    assert process.stdout.readline().split()[:3] == ["3", "1", "1.000"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (INTERRUPTED, "", "interrupted\n")
