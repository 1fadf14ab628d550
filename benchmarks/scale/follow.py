"""How long ``--follow`` takes to tell a step that was written while it looks at a large log."""

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.scale.made_up import MadeUpRun, write_lines
from benchmarks.scale.measure import REPOSITORY, degeneracy
from benchmarks.scale.text_logs import verl_rows

EVERY = 0.2  # seconds between two looks, where a look takes no longer


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
