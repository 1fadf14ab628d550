"""Measurements of commands, and their answers."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

REPOSITORY = Path(__file__).resolve().parents[2]
_WRAPPER = Path(__file__).with_name("wrapper.py")


class Measurement(Struct, frozen=True):
    """What one process took."""

    seconds: float  # by the clock
    cpu: float  # seconds of all cores
    peak_mb: float
    status: int = 0  # with which it ended


class Answer(Struct, frozen=True):
    """What a process found."""

    num_groups: int
    num_dead: int
    num_rollouts: int


def degeneracy(folder: Path, *options: str) -> list[str]:
    """The whole command."""
    return [sys.executable, "-m", "gradscope", "degeneracy", str(folder), *options]


def measured(command: Sequence[str], output: Path | None = None, rightly: Sequence[int] = (0,)) -> Measurement:
    """One run of a command, with its output in a file; without one all that it says is thrown away.

    Raises:
        SystemExit: It ended with a status that is not right.
    """
    wrapped = [sys.executable, "-I", str(_WRAPPER), str(output or os.devnull), *command]
    errors = None if output else subprocess.PIPE
    done = subprocess.run(wrapped, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=REPOSITORY, check=True)
    found = Measurement(**json.loads(done.stdout))
    if found.status not in rightly:
        raise SystemExit(f"{done.stderr or ''}{' '.join(command)} ended with status {found.status}.")
    return found


def answer_of(folder: Path) -> Answer:
    """What gradscope's JSON says."""
    found = json.loads(_output_of(degeneracy(folder, "--json")))["result"]
    num_groups = found["num_groups"]
    num_dead = round(found["frac_reward_zero_std"]["value"] * num_groups)
    return Answer(num_groups, num_dead, found["num_rollouts"])


def answer_of_peer(command: Sequence[str]) -> Answer:
    """What a scan or a loop prints."""
    num_groups, num_dead, num_rollouts, *_ = json.loads(_output_of(command))
    return Answer(num_groups, num_dead, num_rollouts)


def _output_of(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout
