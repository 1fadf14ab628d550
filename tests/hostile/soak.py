"""Processes that go on for hours, looked at from outside: their memory and open files, after the first tenth and last.

`degeneracy --follow` keeps up with a log that grows by a step at each look and is rotated after 50; a trainer under the
recorder makes an update at each; `rank`, in one process, is asked at each, of one run, one step after the other.
"""

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
from tests.hostile.cases import options_of, summarize
from tests.hostile.writes import trained

_RECORDER = """
import sys, time
from pathlib import Path
from transformers import TrainerCallback
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
Look = tuple[float, int]  # megabytes in memory, and open files


def _grow(folder: Path, step: int) -> None:
    """A step more in the log of a folder, of 16 groups of 16."""
    log, chance = folder / "log" / "rollouts.jsonl", random.Random(step)
    log.parent.mkdir(exist_ok=True)
    if step and step % ROTATED == 0:
        log.rename(log.with_name(f"rollouts.{step}.jsonl"))
    with log.open("a") as stream:
        for row in range(256):
            cells = {
                "step": step,
                "prompt_id": f"p{row // 16}",
                "reward": chance.randint(0, 1),
                "completion": "x" * row,
            }
            stream.write(json.dumps(cells) + "\n")


def _look(process: int) -> Look:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024, len(os.listdir(f"/proc/{process}/fd"))


def soak(names: Sequence[str], minutes: float, pause: float) -> dict[str, list[Look]]:
    """Let some of ``SOAKED`` go on together, until Ctrl-C at the latest; a look at each every ``pause`` seconds."""
    looks: dict[str, list[Look]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack, suppress(KeyboardInterrupt):
        folder, running = Path(place), {}
        if "rank" in names:
            trained(folder)
        _grow(folder, 0)
        for name in names:
            said = stack.enter_context((folder / f"{name}.txt").open("w"))
            command = [sys.executable, *SOAKED[name], *[str(pause)] * (name != "follow")]
            environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
            running[name] = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=environment)
            stack.callback(running[name].kill)
        for step in range(1, int(60 * minutes / pause) + 1):
            time.sleep(pause)
            _grow(folder, step)
            for name, process in running.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(folder / f'{name}.txt').read_text()[-2000:]}")
                looks[name].append(_look(process.pid))
    return looks


def judged(looks: Sequence[Look]) -> tuple[str, str]:
    """What a process held in the second tenth of the looks and in the last; the same again where it is not flat."""
    tenth = len(looks) // 10 or 1
    (before, files), (after, files_late) = (
        (median(memory for memory, _ in part), max(files for _, files in part))
        for part in (looks[tenth : 2 * tenth], looks[-tenth:])
    )
    came_to = f"{len(looks)} looks, {before:.0f} to {after:.0f} MB, {files} to {files_late} files"
    return came_to, came_to if after > 1.1 * before or files_late > files else ""


if __name__ == "__main__":
    options = options_of("soak", __doc__, minutes=120.0, pause=10.0, only=tuple(SOAKED))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    looks = soak(options.only, options.minutes, options.pause)
    judgements = {name: judged(each) for name, each in looks.items()}
    sys.exit(summarize((f"{name}, {came_to}", why) for name, (came_to, why) in judgements.items()))
