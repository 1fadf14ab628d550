"""Cases by the thousand: a few processes that each run many, watched from outside, begun anew where one ends."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY
from tests.hostile.cases import BYTES, SECONDS, as_line, run_case

CHUNK = 1000  # cases of one process: what a library keeps of the files that it has seen goes with it
_PATIENCE = 10 * SECONDS  # seconds on the wall after which a case hangs: on a busy machine it has a part of a processor
_START = 600.0  # seconds until a process is ready: half a minute of imports on a busy machine is no case's fault
_CODE = "from tests.hostile.campaign import work; work()"


@dataclass
class Tally:
    """What a campaign came to."""

    codes: Counter[int] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0  # bytes of the largest process

    def add(self, outcome: dict[str, Any]) -> None:
        """Count a case."""
        self.codes[outcome["code"]] += 1
        self.slowest = max(self.slowest, outcome["seconds"])
        self.largest = max(self.largest, outcome.get("bytes", 0))
        if outcome.get("bytes", 0) > BYTES and not outcome["wrong"]:
            outcome["wrong"] = f"{outcome['bytes'] >> 20} MiB"
        if outcome["wrong"]:
            self.wrong.append(outcome)

    def __str__(self) -> str:
        codes = ", ".join(f"exit {code}: {number:,}" for code, number in sorted(self.codes.items()))
        return (
            f"{self.codes.total():,} cases ({codes}); {len(self.wrong)} did not hold; slowest {self.slowest:.1f} s; "
            f"largest process {self.largest >> 20} MiB"
        )


def run_campaign(cases: Sequence[int], *, seed: int, jobs: int, model: Path | None, found: Any = None) -> Tally:
    """Run cases.

    Args:
        cases: Their numbers.
        seed: Of the campaign.
        jobs: Processes at once.
        model: A run with checkpoints, or None.
        found: A text file that gets each case that did not hold, as a line of JSON, at once.
    """
    tally, waiting = Tally(), [list(cases[at : at + CHUNK]) for at in range(0, len(cases), CHUNK)]
    with tempfile.TemporaryDirectory(prefix="gradscope-hostile-") as folder, ExitStack() as stack:
        workers: list[_Worker] = []
        with suppress(KeyboardInterrupt):  # what was run until then is told
            while waiting or workers:
                while waiting and len(workers) < jobs:
                    worker = _Worker(waiting.pop(0), seed, Path(folder), model)
                    stack.callback(worker.end)
                    workers.append(worker)
                select.select([worker.descriptor for worker in workers], [], [], 1.0)
                for worker in list(workers):
                    for outcome in worker.outcomes():
                        before = len(tally.wrong)
                        tally.add(outcome)
                        if found is not None and len(tally.wrong) > before:
                            found.write(json.dumps(outcome) + "\n")
                            found.flush()
                    if worker.has_ended:
                        workers.remove(worker)
                        if worker.left:
                            waiting.insert(0, worker.left)
    return tally


class _Worker:
    """A process that runs cases one after the other and says which."""

    def __init__(self, cases: list[int], seed: int, folder: Path, model: Path | None) -> None:
        self.left = cases
        self._started = time.monotonic()
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.descriptor = self._process.stdout.fileno()
        os.set_blocking(self.descriptor, False)
        place = folder / f"worker-{self._process.pid}"
        order = {"cases": cases, "seed": seed, "folder": str(place), "model": None if model is None else str(model)}
        with self._process.stdin as stream:
            stream.write(json.dumps(order).encode())
        self._text, self.has_ended, self._is_ready = b"", False, False

    def outcomes(self) -> Iterator[dict[str, Any]]:
        """The cases that ended since the last look; one that was killed, or that killed the process, among them."""
        ended = self._process.poll() is not None
        while data := _read(self.descriptor):
            self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            self._started = time.monotonic()
            if self._is_ready:
                self.left = self.left[1:]
                yield json.loads(line)
            self._is_ready = True
        if ended:
            self.has_ended = True
            if self.left and self._process.returncode:
                yield self._lost(f"the process ended with {self._process.returncode}")
        elif self.left and time.monotonic() - self._started > (_PATIENCE if self._is_ready else _START):
            self.end()
            self.has_ended = True
            yield self._lost(f"no end in {_PATIENCE:.0f} s")

    def _lost(self, why: str) -> dict[str, Any]:
        case, *self.left = self.left
        seconds = time.monotonic() - self._started
        return {"case": case, "code": -1, "seconds": seconds, "subject": "", "damage": "", "command": "", "wrong": why}

    def end(self) -> None:
        """End the process, if it has not."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except (BlockingIOError, OSError):
        return b""


def work() -> None:
    """What one process does: cases in, an empty line once it is ready, a line of JSON a case out."""
    order = json.load(sys.stdin)
    told = os.fdopen(os.dup(1), "w")
    with open(os.devnull, "w", encoding="utf-8") as nothing:  # what a library prints is no outcome
        os.dup2(nothing.fileno(), 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    model = None if order["model"] is None else Path(order["model"])
    if model is not None:
        import gradscope.gradients.model.policy  # noqa: F401

    told.write("\n")
    told.flush()
    for case in order["cases"]:
        _forget_peak()
        outcome = json.loads(as_line(run_case(order["seed"], case, Path(order["folder"]), model)))
        told.write(json.dumps(outcome | {"bytes": _peak()}) + "\n")
        told.flush()


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux: the peak is that of the process so far
        return


def _peak() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
