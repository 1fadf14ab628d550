"""Cases by the thousand: each in a fork of a process that has imported what the commands need, a few at once."""

import gc
import json
import os
import resource
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from tests.hostile.cases import BYTES, SECONDS, Outcome, run_case
from tests.hostile.writes import preload

_WARMING = 60  # cases run first where the forks come from: what commands import late costs more than they do
_PATIENCE = int(10 * SECONDS)  # seconds on the wall until a case hangs: on a busy machine it has a part of a processor


class Tally(Struct):
    """What a campaign came to."""

    codes: Counter[int] = field(default_factory=Counter)
    wrong: list[Outcome] = []
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


def run_campaign(cases: Sequence[int], *, seed: int, jobs: int, model: Path | None, failures: Any = None) -> Tally:
    """Run cases by their numbers, as ``run_case`` does; ``failures`` gets each that did not hold, at once."""
    preload(["report" if model is None else "rank"])
    tally, waiting, running = Tally(), iter(cases), dict[int, int]()
    with (
        tempfile.TemporaryDirectory(prefix="gradscope-hostile-") as folder,
        suppress(KeyboardInterrupt),  # what was run until then is counted
    ):
        for case in range(_WARMING):
            run_case(seed, case, Path(folder) / "warm", None)
        gc.freeze()  # a fork that collects garbage would copy every page
        while True:
            for case in islice(waiting, jobs - len(running)):
                running[_started(seed, case, Path(folder), model)] = case
            if not running:
                break
            process, status, used = os.wait4(-1, 0)
            outcome = _outcome(running.pop(process), Path(folder), os.waitstatus_to_exitcode(status), used)
            before = len(tally.wrong)
            tally.add(outcome)
            if failures is not None:
                failures.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in tally.wrong[before:])
                failures.flush()
    for process in running:
        os.kill(process, signal.SIGKILL)
    return tally


def _started(seed: int, case: int, folder: Path, model: Path | None) -> int:
    """The process that runs a case and leaves its outcome in a file."""
    process = os.fork()
    if process == 0:
        signal.alarm(_PATIENCE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for stream in (1, 2):  # what a library prints is no outcome
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        try:
            outcome = run_case(seed, case, folder / f"{case}", model)
        except BaseException as error:
            outcome = Outcome(case=case, code=-1, seconds=0.0, wrong=repr(error))
        try:
            (folder / f"{case}.json").write_text(json.dumps(asdict(outcome)))
        finally:
            os._exit(0)
    return process


def _outcome(case: int, folder: Path, code: int, used: resource.struct_rusage) -> Outcome:
    """What a process left of its case, or that it was ended, and how much memory it took."""
    shutil.rmtree(folder / f"{case}", ignore_errors=True)
    file = folder / f"{case}.json"
    if file.exists():
        outcome = Outcome(**json.loads(file.read_text()))
        file.unlink()  # a case may link to the folder above its own
        return replace(outcome, bytes=used.ru_maxrss << 10)
    seconds = used.ru_utime + used.ru_stime
    return Outcome(case=case, code=-1, seconds=seconds, wrong=f"the process ended with {code}")
