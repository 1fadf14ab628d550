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
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.strangers.case import Case, Folders

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

HEAD = "| case | axis | expected | outcome | autograd / log | replay / log | rank / autograd | what was said |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", help="names of cases, with * and ?")
    parser.add_argument("--axis", help="one axis")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the runs here and use those that are there")
    parser.add_argument("--list", action="store_true", help="only name the cases")
    arguments = parser.parse_args()
    chosen = [
        case
        for case in _cases()
        if fnmatch.fnmatch(case.name, arguments.only or "*") and arguments.axis in (None, case.axis)
    ]
    if arguments.list:
        print("\n".join(f"{case.axis:14} {case.name}" for case in chosen))
        return
    _be_quiet()
    with tempfile.TemporaryDirectory() as scratch:
        _print_table(chosen, arguments.keep or Path(scratch))


def _cases() -> Sequence[Case]:
    from benchmarks.strangers.cases import CASES

    return CASES


def _be_quiet() -> None:
    import torch
    import transformers

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)


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
    for axis in [*(axis for axis in axes if axis != "all"), "all"]:
        numbers = [counts[axis, outcome] for outcome in outcomes]
        print(f"| {' | '.join([axis, str(sum(numbers)), *map(str, numbers)])} |")


def _line(case: Case, folders: Folders) -> tuple[str, str]:
    """The outcome of a case and its line."""
    from benchmarks.strangers.judge import judge
    from benchmarks.strangers.make import make_run

    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            make_run(case, folders)
    except Exception as error:
        return "not made", _cells(case, "not made", "", "", "", f"{type(error).__name__}: {error}")
    try:
        result = judge(case, folders)
    except Exception as error:
        return "not judged", _cells(case, "not judged", "", "", "", f"{type(error).__name__}: {error}")
    errors = (result.oracle_error, result.replay_error, result.rank_error)
    numbers = ["" if error != error else f"{error:.1e}" for error in errors]
    return result.outcome, _cells(case, result.outcome, *numbers, result.words)


def _cells(case: Case, outcome: str, *more: str) -> str:
    expected = case.expect + "".join(f", {step}: {kind}" for step, kind in case.at.items())
    *numbers, said = more
    words = " ".join(said.split()).replace("|", "\\|")[:400]
    return f"| {' | '.join([case.name, case.axis, expected, outcome, *numbers, words])} |"


if __name__ == "__main__":
    main()
