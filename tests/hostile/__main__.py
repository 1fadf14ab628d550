"""`python -m tests.hostile`: a campaign of a night, or one of its cases again."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.hostile.campaign import run_campaign
from tests.hostile.cases import run_case

_RUN = ("--steps", "2", "--num-prompts", "2", "--group-size", "4", "--checkpoint-every", "1", "--heldout-prompts", "0")


def make_model(folder: Path) -> Path:
    """A run of two updates of the embedded model, whose checkpoints are damaged."""
    command = [sys.executable, "-m", "gradscope", "train", "--output", str(folder), "--quiet", *_RUN]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    return folder


def main() -> int:
    """Run the cases that are asked for; the exit code tells whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--found", type=Path, default=Path("hostile.jsonl"), help="gets each case that did not hold")
    parser.add_argument("--logs", action="store_true", help="damage no model: 4 cases of 100, most of the time")
    parser.add_argument("--keep", type=Path, help="run the first case alone, in this folder, which stays")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        model = None if asked.logs else make_model(Path(folder) / "run")
        if asked.keep is not None:
            sys.stdout.write(f"{run_case(asked.seed, asked.first, asked.keep, model)}\n")
            return 0
        cases = range(asked.first, asked.first + asked.cases)
        with asked.found.open("a", encoding="utf-8") as found:
            tally = run_campaign(cases, seed=asked.seed, jobs=asked.jobs, model=model, found=found)
    sys.stdout.write(f"seed {asked.seed}: {tally}\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
