"""Measurements of commands, and their answers."""

import json
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


class Answer(Struct, frozen=True):
    """What a process found."""

    num_groups: int
    num_dead: int
    num_rollouts: int


def degeneracy(folder: Path, *options: str) -> list[str]:
    """The whole command."""
    return [sys.executable, "-m", "gradscope", "degeneracy", str(folder), *options]


def measured(command: Sequence[str]) -> Measurement:
    """One run of a command, with its output thrown away."""
    return Measurement(**json.loads(_output_of([sys.executable, "-I", str(_WRAPPER), *command])))


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
