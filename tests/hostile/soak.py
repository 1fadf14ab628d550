"""Processes that go on for hours, looked at from outside: their memory and open files, after the first tenth and last.

`degeneracy --follow` keeps up with a log that grows by a step at each look and is rotated after 50; a trainer under the
recorder makes an update at each; `rank`, in one process, is asked at each, of one run, one step after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

from tests.conftest import REPOSITORY
from tests.hostile.__main__ import make_model
from tests.hostile.cases import told

_RECORDER = """
import sys, time
from transformers import TrainerCallback
from pathlib import Path
from gradscope.training import RolloutRecorder
from tests.training.stock import stock_trainer, train
class Resting(TrainerCallback):
    def on_step_end(self, *arguments, **more):
        time.sleep(float(sys.argv[1]))
trainer = stock_trainer(Path("trl"), max_steps=1_000_000)
RolloutRecorder(trainer, "recorded", weights_every=10)
trainer.add_callback(Resting())
train(trainer)
"""
_RANK = """
import sys, time
from tests.hostile.cases import called
while True:
    for options in ("--step=1", "--step=2", "--step=2 --rows=token"):
        code, out, err = called(["rank", "run", "--json", *options.split()])
        assert code == 0, err
        time.sleep(float(sys.argv[1]))
"""
SOAKED = {
    "follow": ("-m", "gradscope", "degeneracy", "log", "--follow"),
    "recorder": ("-c", _RECORDER),
    "rank": ("-c", _RANK),
}
ROTATED = 50  # steps in one file of the log


def _grow(folder: Path, step: int) -> None:
    """A step more in the log of a folder, of 16 groups of 16."""
    log, chance = folder / "log" / "rollouts.jsonl", random.Random(step)
    log.parent.mkdir(exist_ok=True)
    if step and step % ROTATED == 0:
        log.rename(log.with_name(f"rollouts.{step}.jsonl"))
    with log.open("a") as stream:
        for row in range(256):
            told = {"step": step, "prompt_id": f"p{row // 16}", "reward": chance.randint(0, 1), "completion": "x" * row}
            stream.write(json.dumps(told) + "\n")


def _look(process: int) -> tuple[float, int]:
    """Megabytes in memory, and open files."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024, len(list(Path(f"/proc/{process}/fd").iterdir()))


def soak(names: Sequence[str], minutes: float, pause: float) -> dict[str, list[tuple[float, int]]]:
    """Let processes go on together, all from one folder.

    Args:
        names: Which of ``SOAKED``.
        minutes: How long at most; until Ctrl-C, or until one of them ends.
        pause: Seconds between two steps, and two looks.

    Returns:
        Megabytes and open files at each look.
    """
    looks: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        if "rank" in names:
            make_model(folder / "run")
        _grow(folder, 0)
        running = {}
        for name in names:
            said = stack.enter_context((folder / f"{name}.txt").open("w"))
            command = [sys.executable, *SOAKED[name], *[str(pause)] * (name != "follow")]
            environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
            running[name] = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=environment)
            stack.callback(running[name].kill)
        end, step = time.monotonic() + 60 * minutes, 0
        with suppress(KeyboardInterrupt):  # what was seen until then is told
            while time.monotonic() < end:
                time.sleep(pause)
                _grow(folder, step := step + 1)
                for name, process in running.items():
                    if process.poll() is not None:
                        raise RuntimeError(f"{name} ended: {(folder / f'{name}.txt').read_text()[-2000:]}")
                    looks[name].append(_look(process.pid))
    return looks


def judged(looks: Sequence[tuple[float, int]]) -> tuple[str, str]:
    """What a process held early, after a tenth of the looks, and late, the last tenth; why it is not flat."""
    tenth = len(looks) // 10 or 1
    early, late = looks[tenth : 2 * tenth] or looks, looks[-tenth:]
    (before, files), (after, files_late) = (
        (median(m for m, _ in one), max(f for _, f in one)) for one in (early, late)
    )
    came_to = f"{len(looks)} looks, {before:.0f} to {after:.0f} MB, {files} to {files_late} files"
    return came_to, came_to if after > 1.1 * before or files_late > files else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--pause", type=float, default=10, help="seconds between two steps, and two looks")
    parser.add_argument("--only", action="append", choices=SOAKED)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = {
        name: judged(looks) for name, looks in soak(asked.only or tuple(SOAKED), asked.minutes, asked.pause).items()
    }
    sys.exit(told((f"{name}, {came_to}", why) for name, (came_to, why) in found.items()))
