"""Cases by the thousand: a few processes, of Linux, that each run many, watched from outside, begun anew at an end."""

import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.hostile.cases import BYTES, SECONDS, Outcome, run_case

CHUNK = 1000  # cases of one process: what a library keeps of the files that it has seen goes with it
_PATIENCE = 10 * SECONDS  # seconds on the wall after which a case hangs: on a busy machine it has a part of a processor
_START = 600.0  # seconds until a process is ready: half a minute of imports on a busy machine is no case's fault
_NEW = multiprocessing.get_context("spawn")


@dataclass
class Tally:
    """What a campaign came to."""

    codes: Counter[int] = field(default_factory=Counter)
    wrong: list[Outcome] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0  # bytes of the largest process

    def add(self, outcome: Outcome) -> None:
        """Count a case."""
        self.codes[outcome.code] += 1
        self.slowest = max(self.slowest, outcome.seconds)
        self.largest = max(self.largest, outcome.bytes)
        if outcome.bytes > BYTES and not outcome.wrong:
            outcome = replace(outcome, wrong=f"{outcome.bytes >> 20} MiB")
        if outcome.wrong:
            self.wrong.append(outcome)

    def __str__(self) -> str:
        codes = ", ".join(f"exit {code}: {number:,}" for code, number in sorted(self.codes.items()))
        return (
            f"{self.codes.total():,} cases ({codes}); {len(self.wrong)} did not hold; slowest {self.slowest:.1f} s; "
            f"largest process {self.largest >> 20} MiB"
        )


def run_campaign(cases: Sequence[int], *, seed: int, jobs: int, model: Path | None, found: Any = None) -> Tally:
    """Run cases by their numbers, as ``run_case`` does; ``found`` gets each that did not hold, at once."""
    tally, waiting = Tally(), [list(cases[at : at + CHUNK]) for at in range(0, len(cases), CHUNK)]
    workers: list[_Worker] = []
    with (
        tempfile.TemporaryDirectory(prefix="gradscope-hostile-") as folder,
        ExitStack() as stack,
        suppress(KeyboardInterrupt),  # what was run until then is told
    ):
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(waiting.pop(0), seed, Path(folder), model))
                stack.callback(workers[-1].end)
            wait([worker.pipe for worker in workers], 1.0)
            for worker in list(workers):
                before = len(tally.wrong)
                for outcome in worker.outcomes():
                    tally.add(outcome)
                if found is not None:
                    found.writelines(json.dumps(asdict(one)) + "\n" for one in tally.wrong[before:])
                    found.flush()
                if worker.has_ended:
                    workers.remove(worker)
                    waiting[:0] = [worker.left] if worker.left else []
    return tally


class _Worker:
    """A process that runs cases one after the other and says which."""

    def __init__(self, cases: list[int], seed: int, folder: Path, model: Path | None) -> None:
        self.left, self.has_ended = cases, False
        self._started, self._patience = time.monotonic(), _START
        self.pipe, theirs = _NEW.Pipe(duplex=False)
        order = (theirs, cases, seed, folder / f"from-{cases[0]}", model)
        self._process = _NEW.Process(target=_work, args=order)
        self._process.start()
        theirs.close()

    def outcomes(self) -> Iterator[Outcome]:
        """The cases that ended since the last look; one that was killed, or that killed the process, among them."""
        try:
            while self.pipe.poll():
                outcome = self.pipe.recv()
                self._started, self._patience = time.monotonic(), _PATIENCE
                if outcome is not None:  # it is ready
                    self.left = self.left[1:]
                    yield outcome
        except (EOFError, OSError):
            self.end()
            if self.left:
                yield self._lost(f"the process ended with {self._process.exitcode}")
        else:
            if self.left and time.monotonic() - self._started > self._patience:
                self.end()
                yield self._lost(f"no end in {self._patience:.0f} s")

    def _lost(self, why: str) -> Outcome:
        case, *self.left = self.left
        seconds = time.monotonic() - self._started
        return Outcome(case=case, code=-1, seconds=seconds, wrong=why)

    def end(self) -> None:
        """End the process, if it has not."""
        self.has_ended = True
        self._process.join(1.0)
        self._process.kill()
        self._process.join()


def _work(pipe: Connection, cases: list[int], seed: int, folder: Path, model: Path | None) -> None:
    """What one process does: None once it is ready, and an outcome a case."""
    for stream in (1, 2):  # what a library prints is no outcome
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if model is not None:
        import gradscope.gradients.model.policy  # noqa: F401

    pipe.send(None)
    for case in cases:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        outcome = run_case(seed, case, folder, model)
        status = Path("/proc/self/status").read_text()
        pipe.send(replace(outcome, bytes=int(status.partition("VmHWM:")[2].split()[0]) << 10))
