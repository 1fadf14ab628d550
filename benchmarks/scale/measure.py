"""Measurements of commands, their answers, and how soon ``--follow`` tells of a step."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.scale.made_up import MadeUpRun, write_lines
from benchmarks.scale.text_logs import verl_rows

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY = 0.2  # seconds between two looks, where a look takes no longer
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


def follow(folder: Path, run: MadeUpRun, num_steps: int) -> tuple[float, list[float]]:
    """Follow a run of verl's, and write further steps, one after the other, each as a file that is whole at once.

    Returns:
        Seconds from the start to the line of the last step of the log, and from each further file to its step's line.
    """
    command = degeneracy(folder, "--follow", "--every", str(EVERY), "--quiet")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment) as process:
        assert process.stdout is not None
        try:
            _wait_for(run.num_steps, process.stdout)
            told = time.perf_counter() - started
            waited = []
            for step in range(run.num_steps + 1, run.num_steps + 1 + num_steps):
                aside = folder.with_name(f"{folder.name}-{step}")
                write_lines(aside, verl_rows(run, step))
                aside.rename(folder / f"{step}.jsonl")
                written = time.perf_counter()
                _wait_for(step, process.stdout)
                waited.append(time.perf_counter() - written)
        finally:
            process.kill()
    return told, waited


def _wait_for(step: int, lines: Iterable[str]) -> None:
    for line in lines:
        if line.split()[:1] == [str(step)]:
            return
    raise SystemExit(f"gradscope ended before it told step {step}.")
