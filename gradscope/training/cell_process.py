"""A cell of a grid as a process of its own, forked from one that has already imported what training needs.

The imports take as long as a small run. On a CPU they are made once, in multiprocessing's fork server, and every cell
starts from there; a process that has a GPU must not be forked, so there each cell imports for itself.

Not by ``concurrent.futures``: one worker that is killed breaks its whole pool and leaves no exit code, and a pool
cannot interrupt one worker. Here the other cells go on, and a cell that failed keeps its exit code and its last words.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import IO, Any

from gradscope.errors import GradscopeError
from gradscope.training.setup.config import TrainConfig

_PRELOADED = ["gradscope.training.run_training", "gradscope.training.train"]
_PATIENCE = 20.0
"""Seconds that an interrupted cell gets to end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellProcess:
    """A cell whose process was started."""

    config: TrainConfig
    """Its configuration."""
    process: BaseProcess
    """The process."""
    talk: IO[bytes]
    """What it says on stderr."""

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, one way or another."""
        return self.process.exitcode is not None

    @property
    def failure(self) -> str | None:
        """The last thing that a cell said which failed; None for one that did not."""
        if not self.process.exitcode:
            return None
        self.talk.seek(0)
        lines = self.talk.read().decode(errors="replace").strip().splitlines()
        return (lines or [f"exit code {self.process.exitcode}"])[-1].rstrip(".")


def start_cell(cell: TrainConfig, arguments: Sequence[str], *, resume: bool, force: bool, on_gpu: bool) -> CellProcess:
    """Start a cell's process.

    Args:
        cell: The cell's configuration.
        arguments: The command line that makes the same run, after ``gradscope``; for the manifest.
        resume: Whether it goes on with what is there.
        force: Whether it replaces what is there.
        on_gpu: Whether cells compute on a GPU.

    Returns:
        The process, which runs.
    """
    talk = tempfile.NamedTemporaryFile(prefix="gradscope-cell-")  # noqa: SIM115  # closed when the cell has ended
    process = _context(on_gpu=on_gpu).Process(target=_make, args=(cell, tuple(arguments), resume, force, talk.name))
    process.start()
    return CellProcess(config=cell, process=process, talk=talk)


def stop_cells(running: Sequence[CellProcess]) -> None:
    """Interrupt the cells that still run, as Ctrl-C would, and wait for them."""
    for cell in running:
        if cell.process.pid is not None and not cell.has_ended:
            os.kill(cell.process.pid, signal.SIGINT)
    for cell in running:
        cell.process.join(_PATIENCE)
        if not cell.has_ended:
            cell.process.kill()
            cell.process.join()
        cell.talk.close()


def _context(*, on_gpu: bool) -> Any:
    if on_gpu or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _make(cell: TrainConfig, arguments: Sequence[str], resume: bool, force: bool, talk: str) -> None:
    """What the process does: one run, with one thread, its last words in a file."""
    import torch

    from gradscope.training.train import train

    sys.argv = ["gradscope", *arguments]
    # a study in the background of a shell inherits that Ctrl-C is ignored, and stops its cells by it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _redirect(sys.stdout.fileno(), os.devnull)
    _redirect(sys.stderr.fileno(), talk)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        train(cell, resume=resume, force=force)
    except GradscopeError as error:
        sys.exit(error.message)


def _redirect(descriptor: int, path: str) -> None:
    target = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(target, descriptor)
    os.close(target)
