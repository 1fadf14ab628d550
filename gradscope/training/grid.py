"""Runs that differ in one thing at a time: a cell for every formulation, learning rate and seed, side by side.

Cells of one seed share initial weights, prompts, their order and the sampler's seed; their manifests differ in what was
asked for and in the folder. Each cell is a process of its own, and each manifest holds the command that repeats it.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import gradscope
from gradscope.errors import InputError, UsageError
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.run_folder import manifest_path
from gradscope.rollouts.store import step_files
from gradscope.training.config import TrainConfig
from gradscope.training.trainer import check_free, check_settings, is_finished

_POLL = 0.3
"""Seconds between two looks at the processes."""
_PATIENCE = 20.0
"""Seconds that an interrupted cell gets to end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A cell whose process runs."""

    config: TrainConfig
    """Its configuration."""
    process: subprocess.Popen[bytes]
    """The process."""
    talk: IO[bytes]
    """What it says on stderr."""


def make_cells(
    base: TrainConfig,
    *,
    advantages: Sequence[str] = (),
    learning_rates: Sequence[float] = (),
    seeds: Sequence[int] = (),
) -> tuple[TrainConfig, ...]:
    """The configurations of a grid; what is not varied is that of the base.

    Args:
        base: What all cells share; its output is the folder of the grid.
        advantages: Formulations.
        learning_rates: Learning rates.
        seeds: Seeds.

    Returns:
        One configuration a cell, seed by seed, each with a folder named for what is varied.

    Raises:
        UsageError: A value is given twice.

    Example:
        >>> [cell.output for cell in make_cells(TrainConfig(output="g"), advantages=["grpo", "sign"], seeds=[0])]
        ['g/grpo-seed0', 'g/sign-seed0']
    """
    for values in (advantages, learning_rates, seeds):
        twice = [value for index, value in enumerate(values) if value in values[:index]]
        if twice:
            raise UsageError(f"{twice[0]} is given twice.", hint="Name each value of a grid once.")
    return tuple(
        dataclasses.replace(
            base,
            advantage=advantage,
            learning_rate=rate,
            seed=seed,
            output=str(
                Path(base.output)
                / "-".join([advantage, *([f"lr{rate:g}"] if len(learning_rates) > 1 else []), f"seed{seed}"])
            ),
        )
        for seed in seeds or [base.seed]
        for advantage in advantages or [base.advantage]
        for rate in learning_rates or [base.learning_rate]
    )


def train_grid(
    cells: Sequence[TrainConfig],
    *,
    num_processes: int | None = None,
    resume: bool = False,
    force: bool = False,
    progress: ProgressCallback = no_progress,
    on_cell: Callable[[Path], None] = lambda _: None,
) -> tuple[Path, ...]:
    """Make the runs of a grid.

    Args:
        cells: From :func:`make_cells`.
        num_processes: Cells at once; None: one a core on a CPU, one on a GPU.
        resume: Go on with the cells that were interrupted, start those that are missing, leave those that are finished.
        force: Replace the cells that are there.
        progress: Told how many steps of all cells are done.
        on_cell: Told the folder of each cell that is finished now.

    Returns:
        The folders of the cells.

    Raises:
        UsageError: ``resume`` and ``force`` together, or settings that do not go together.
        InputError: Cells failed; the others are finished.
    """
    if resume and force:
        raise UsageError("--resume goes on with a grid and --force replaces it.", hint="Give one of the two.")
    for cell in cells:
        check_settings(cell)
        if not resume:
            check_free(Path(cell.output), force=force)
    waiting = [cell for cell in cells if not (resume and _has_manifest(cell) and is_finished(Path(cell.output), cell))]
    failed = _run_all(waiting, num_processes or _cores(cells[0]), force, progress, on_cell)
    if failed:
        reasons = "; ".join(f"{Path(cell.output).name} ({reason})" for cell, reason in failed)
        raise InputError(
            f"{len(failed)} of {len(cells)} cells failed: {reasons}.",
            hint="The others are finished; the same command with --resume makes what is missing.",
        )
    return tuple(Path(cell.output) for cell in cells)


def command_of(cell: TrainConfig, *, resume: bool = False, force: bool = False) -> list[str]:
    """The command line of a cell.

    Args:
        cell: Its configuration.
        resume: Whether it goes on with what is there.
        force: Whether it replaces what is there.

    Returns:
        Arguments after ``gradscope``: what differs from the defaults.

    Example:
        >>> command_of(TrainConfig(output="a", seed=3))
        ['train', '--output', 'a', '--seed', '3']
    """
    defaults = TrainConfig().to_json()
    given = {name: value for name, value in cell.to_json().items() if value != defaults[name]}
    flags = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", *flags, *(["--resume"] if resume else []), *(["--force"] if force else [])]


def _run_all(
    cells: Sequence[TrainConfig],
    num_processes: int,
    force: bool,
    progress: ProgressCallback,
    on_cell: Callable[[Path], None],
) -> list[tuple[TrainConfig, str]]:
    """Keep so many processes busy until no cell is left; the cells that failed, with their last words."""
    waiting, running, failed = list(cells), list[Started](), list[tuple[TrainConfig, str]]()
    try:
        while waiting or running:
            while waiting and len(running) < num_processes:
                running.append(_start(waiting.pop(0), force=force))
            time.sleep(_POLL)
            for started in [started for started in running if started.process.poll() is not None]:
                running.remove(started)
                if started.process.returncode:
                    failed.append((started.config, _last_words(started)))
                else:
                    on_cell(Path(started.config.output))
                started.talk.close()
            done = sum(len(step_files(Path(cell.output))) for cell in cells)
            progress(done, sum(cell.steps for cell in cells), f"steps of {len(cells)} cells")
    finally:
        _stop(running)
    return failed


def _start(cell: TrainConfig, *, force: bool) -> Started:
    talk = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the cell has ended
    resume = not force and _has_manifest(cell)
    arguments = [*command_of(cell, resume=resume, force=force), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gradscope", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=talk,
        env=_environment(),
    )
    return Started(config=cell, process=process, talk=talk)


def _environment() -> dict[str, str]:
    """Ours, with one thread a cell, and with this very package in reach wherever it was imported from."""
    package = str(Path(gradscope.__file__).parent.parent)
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH")) if part)
    return os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONPATH": path}


def _stop(running: Sequence[Started]) -> None:
    """Interrupt what still runs, as Ctrl-C would, and wait for it."""
    for started in running:
        started.process.send_signal(signal.SIGINT)
    for started in running:
        try:
            started.process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            started.process.kill()
            started.process.wait()
        started.talk.close()


def _last_words(started: Started) -> str:
    started.talk.seek(0)
    lines = started.talk.read().decode(errors="replace").strip().splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit code {started.process.returncode}"])[-1].rstrip(".")


def _has_manifest(cell: TrainConfig) -> bool:
    return manifest_path(Path(cell.output)).is_file()


def _cores(cell: TrainConfig) -> int:
    """Processes that do not wait for each other: one a core, and one on a GPU."""
    import torch

    if cell.device != "cpu" and torch.cuda.is_available():
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
