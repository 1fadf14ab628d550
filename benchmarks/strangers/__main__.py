"""Makes the runs of strangers, asks gradscope about each, and prints a table of what came of it.

    python -m benchmarks.strangers --keep runs > strangers.md
    python -m benchmarks.strangers --keep runs --axis loss --only "gspo*"

Every run is by TRL's own GRPOTrainer and holds no code of gradscope. The judge is the gradient norm that TRL logged and
one float64 backward pass a rollout from the folders of the run. Kept runs are used again, so that a second judging
costs only the questions; the folder of a case that was changed has to be deleted.
"""

import argparse
import contextlib
import fnmatch
import io
import logging
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compared_models import settle
from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.cases import CASES
from benchmarks.strangers.judge import judge
from benchmarks.strangers.make import make_run

HEAD = "| case | axis | expected | outcome | autograd / log | replay / log | rank / autograd | what was said |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="names of cases, with * and ?")
    parser.add_argument("--axis", help="one axis")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the runs here and use those that are there")
    asked = parser.parse_args()
    for name in ("TRL_EXPERIMENTAL_SILENCE", "HF_HUB_OFFLINE"):  # read when libraries are imported
        os.environ.setdefault(name, "1")
    settle()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        chosen = [case for case in CASES if fnmatch.fnmatch(case.name, asked.only) and asked.axis in (None, case.axis)]
        _print_table(chosen, asked.keep or Path(scratch))


def _print_table(cases: Sequence[Case], root: Path) -> None:
    """One line a case, then how often each outcome, by axis and in all."""
    counts: Counter[tuple[str, str]] = Counter()
    print(HEAD, "|" + "---|" * (HEAD.count("|") - 1), sep="\n", flush=True)
    for case in cases:
        started = time.perf_counter()
        outcome, line = _line(case, Folders(root / f"{case.axis}_{case.name}".replace(" ", "_").replace("/", "_")))
        counts[case.axis, outcome] += 1
        counts["all", outcome] += 1
        print(f"{line} <!-- {time.perf_counter() - started:.1f} s -->", flush=True)
    axes, outcomes = (list(dict.fromkeys(key[place] for key in counts)) for place in (0, 1))
    print(f"\n| axis | runs | {' | '.join(outcomes)} |", "|" + "---|" * (len(outcomes) + 2), sep="\n")
    for axis in sorted(axes, key="all".__eq__):  # the sum last
        numbers = [counts[axis, outcome] for outcome in outcomes]
        print(f"| {' | '.join([axis, str(sum(numbers)), *map(str, numbers)])} |")


def _line(case: Case, folders: Folders) -> tuple[str, str]:
    """The outcome of a case and its line."""
    outcome, numbers = "not made", ["", "", ""]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            make_run(case, folders)
        outcome = "not judged"
        result = judge(case, folders)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    else:
        outcome, said = result.outcome, result.words
        errors = (result.oracle_error, result.replay_error, result.rank_error)
        numbers = ["" if math.isnan(error) else f"{error:.1e}" for error in errors]
    expected = case.expect + "".join(f", {step}: {kind}" for step, kind in case.at.items())
    words = " ".join(said.split()).replace("|", "\\|")[:400]
    return outcome, f"| {' | '.join([case.name, case.axis, expected, outcome, *numbers, words])} |"


if __name__ == "__main__":
    main()
