"""Runs that differ in one thing at a time: a cell for every formulation, learning rate and seed, side by side.

Cells of one seed share initial weights, prompts, their order and the sampler's seed; their manifests differ in what was
asked for and in the folder. Each cell is a process of its own, and each manifest holds the command that repeats it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

from msgspec import Struct
from msgspec.structs import replace

from gradscope.advantages.registry import short_name
from gradscope.errors import GradscopeError, InputError, UsageError
from gradscope.machine import num_cores
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.run_folder import manifest_path
from gradscope.rollouts.store import step_files, steps_in_file
from gradscope.training.config import TrainConfig
from gradscope.training.processes import require_single_process
from gradscope.training.run_checks import check_free, check_settings
from gradscope.training.train import is_finished

# A cell of a grid as a process of its own, forked from one that has already imported the libraries of training.
#
# The imports take as long as a small run. On a CPU they are made once, in multiprocessing's fork server, and every cell
# starts from there; a process that has a GPU must not be forked, so there each cell imports for itself.
#
# Not by ``concurrent.futures``: one worker that is killed breaks its pool and leaves no exit code, and a pool
# cannot interrupt one worker. So the other cells go on, and a cell that failed keeps its exit code and its last
# words.
_PRELOADED = ["gradscope.training.run_training", "gradscope.training.train"]
_PATIENCE = 20.0  # seconds that an interrupted cell gets to end by itself


class _CellProcess(Struct, frozen=True, kw_only=True):
    """A cell whose process was started."""

    config: TrainConfig
    process: BaseProcess
    log: IO[bytes]  # its stderr

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, one way or another."""
        return self.process.exitcode is not None

    @property
    def failure(self) -> str | None:
        """The last line on stderr of a cell that failed; None for one that did not."""
        if not self.process.exitcode:
            return None
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return (lines or [f"exit code {self.process.exitcode}"])[-1].rstrip(".")


def _start_cell(cell: TrainConfig, *, force: bool, on_gpu: bool) -> _CellProcess:
    """Start a cell's process, which goes on with what is there unless that is replaced."""
    resume = not force and _has_manifest(cell)
    log = tempfile.NamedTemporaryFile(prefix="gradscope-cell-")  # noqa: SIM115  # closed when the cell has ended
    process = _context(on_gpu=on_gpu).Process(target=_make, args=(cell, resume, force, log.name))
    process.start()
    return _CellProcess(config=cell, process=process, log=log)


def _stop_cells(running: Sequence[_CellProcess]) -> None:
    """Interrupt the cells that still run, as Ctrl-C would, and wait for them."""
    for cell in running:
        if cell.process.pid is not None and not cell.has_ended:
            os.kill(cell.process.pid, signal.SIGINT)
    for cell in running:
        cell.process.join(_PATIENCE)
        if not cell.has_ended:
            cell.process.kill()
            cell.process.join()
        cell.log.close()


def _context(*, on_gpu: bool) -> Any:
    if on_gpu or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _make(cell: TrainConfig, resume: bool, force: bool, log: str) -> None:
    """The process's main function: one run, with one thread, stderr in a file."""
    import torch

    from gradscope.training.train import train

    sys.argv = ["gradscope", *_cell_command(cell, resume=resume, force=force)]
    # a study in the background of a shell inherits that Ctrl-C is ignored, and stops its cells by it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _redirect(sys.stdout.fileno(), os.devnull)
    _redirect(sys.stderr.fileno(), log)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        train(cell, resume=resume, force=force)
    except GradscopeError as error:
        sys.exit(error.message)


def _redirect(descriptor: int, path: str) -> None:
    target = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(target, descriptor)
    os.close(target)


_POLL = 0.3  # seconds between two looks at the processes


def make_cells(
    base: TrainConfig,
    *,
    advantages: Sequence[str] = (),
    learning_rates: Sequence[float] = (),
    seeds: Sequence[int] = (),
) -> tuple[TrainConfig, ...]:
    """The configurations of a grid; other settings are those of the base, whose output is the folder of the grid.

    Seed by seed, each with a folder named for the varied settings.

    Raises:
        UsageError: A value is given twice.

    >>> [cell.output for cell in make_cells(TrainConfig(output="g"), advantages=["grpo", "sign"], seeds=[0])]
    ['g/grpo-seed0', 'g/sign-seed0']
    """
    for values in (advantages, learning_rates, seeds):
        repeated = [value for index, value in enumerate(values) if value in values[:index]]
        if repeated:
            raise UsageError(f"{repeated[0]} is given twice.", hint="Name each value of a grid once.")
    return tuple(
        replace(
            base,
            advantage=advantage,
            learning_rate=rate,
            seed=seed,
            output=str(
                Path(base.output)
                / "-".join(
                    [short_name(advantage), *([f"lr{rate:g}"] if len(learning_rates) > 1 else []), f"seed{seed}"]
                )
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
    """Make the runs of a grid, and return their folders.

    Args:
        num_processes: Cells at once; None: one a core on a CPU, one on a GPU.
        resume: Go on with the cells that were interrupted, start those that are missing, leave those that are finished.
        force: Replace the cells that are there.
        progress: Called with the number of finished steps of all cells.
        on_cell: Called with the folder of each cell that is finished.

    Raises:
        UsageError: ``resume`` and ``force`` together, or settings that do not go together.
        InputError: Cells failed; the others are finished.
    """
    require_single_process()
    if resume and force:
        raise UsageError("--resume goes on with a grid and --force replaces it.", hint="Give one of the two.")
    for cell in cells:
        check_settings(cell)
        if not resume:
            check_free(Path(cell.output), force=force)
    waiting = [cell for cell in cells if not (resume and _has_manifest(cell) and is_finished(Path(cell.output), cell))]
    failed = _run_all(waiting, num_processes, force, progress, on_cell)
    if failed:
        reasons = "; ".join(f"{Path(cell.output).name} ({reason})" for cell, reason in failed)
        raise InputError(
            f"{len(failed)} of {len(cells)} cells failed: {reasons}.",
            hint="The others are finished; the same command with --resume makes what is missing.",
        )
    return tuple(Path(cell.output) for cell in cells)


def _cell_command(cell: TrainConfig, *, resume: bool = False, force: bool = False) -> list[str]:
    """The command line of a cell: arguments after ``gradscope``, those that differ from the defaults.

    >>> _cell_command(TrainConfig(output="a", seed=3))
    ['train', '--output', 'a', '--seed', '3']
    """
    defaults = TrainConfig().to_json()
    changed = {name: value for name, value in cell.to_json().items() if value != defaults[name]}
    flags = [part for name, value in changed.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", *flags, *(["--resume"] if resume else []), *(["--force"] if force else [])]


def _run_all(
    cells: Sequence[TrainConfig],
    num_processes: int | None,
    force: bool,
    progress: ProgressCallback,
    on_cell: Callable[[Path], None],
) -> list[tuple[TrainConfig, str]]:
    """Keep this many processes busy until no cell is left; the cells that failed, with their last words."""
    import torch

    on_gpu = torch.cuda.is_available() and any(cell.device != "cpu" for cell in cells)
    num_workers = num_processes or (1 if on_gpu else num_cores())
    waiting, running, failed = list(cells), list[_CellProcess](), list[tuple[TrainConfig, str]]()
    try:
        while waiting or running:
            while waiting and len(running) < num_workers:
                running.append(_start_cell(waiting.pop(0), force=force, on_gpu=on_gpu))
            time.sleep(_POLL)
            for ended in [cell for cell in running if cell.has_ended]:
                running.remove(ended)
                if ended.failure is not None:
                    failed.append((ended.config, ended.failure))
                else:
                    on_cell(Path(ended.config.output))
                ended.log.close()
            done = sum(len(steps_in_file(file)) for cell in cells for file in step_files(Path(cell.output)))
            progress(done, sum(cell.steps for cell in cells), f"steps of {len(cells)} cells")
    finally:
        _stop_cells(running)
    return failed


def _has_manifest(cell: TrainConfig) -> bool:
    return manifest_path(Path(cell.output)).is_file()
