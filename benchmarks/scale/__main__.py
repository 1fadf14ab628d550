"""Measures `gradscope degeneracy` on made-up logs of each kind, each beside a bare scan of the same files.

    python -m benchmarks.scale
    TMPDIR=/var/tmp python -m benchmarks.scale --kind verl --rows 30000000 --bad-lines

Both are processes of their own, from start-up to the last line: the whole command with all its statistics, and a Python
process with one DuckDB query that reads the columns which the answer needs and groups them alike (of slime's pickles
`torch.load(weights_only=True)` and a loop). Rounds are interleaved, so that a busy machine slows all of it alike; both
have read the files once before, and gave the same numbers of groups, dead groups and rollouts. Logs are written to a
temporary folder that is removed, one at a time, each of about 1 GB or less unless `--rows` says otherwise.

`--kind generic --rows 160 --repeats 5` measures a small log.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.scale import text_logs, token_logs
from benchmarks.scale.kind import Kind
from benchmarks.scale.made_up import run_of
from benchmarks.scale.measure import Measurement, answer_of, answer_of_peer, degeneracy, measured

KINDS = {kind.name: kind for kind in (*text_logs.KINDS, *token_logs.KINDS)}
HEAD = (
    "| log | groups, of them dead | beside | seconds | ratio | seconds of all cores | ratio | peak memory, MB |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=KINDS, metavar="NAME", default=KINDS, help=", ".join(KINDS))
    parser.add_argument("--rows", type=int, help="rows of each log")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--bad-lines", action="store_true", help="half a line in the middle of every file of lines")
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    for name in arguments.kind:
        _measure(KINDS[name], arguments)


def _measure(kind: Kind, arguments: argparse.Namespace) -> None:
    """Print the line of a kind.

    Raises:
        SystemExit: The answers differ.
    """
    is_broken = arguments.bad_lines and kind.has_lines
    with TemporaryDirectory(prefix="gradscope-scale-") as name:
        folder, run = Path(name), run_of(arguments.rows or kind.num_rows, kind.rows_a_step)
        kind.make(folder, run, is_broken)
        commands = (degeneracy(folder), kind.peer(folder))
        beside = "scan" if kind.scan else "torch loop"
        answer, other = answer_of(folder), answer_of_peer(commands[1])
        if other != answer:
            raise SystemExit(f"{kind.name}: gradscope says {answer}, the {beside} {other}.")
        both = [(measured(commands[0]), measured(commands[1])) for _ in range(arguments.repeats)]
        broken = ", a broken line a file" if is_broken else ""
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9
        log = f"{kind.name}, {run.num_rows:,} rows, {size:.2f} GB{broken}"
        print(f"| {log} | {answer.num_groups:,}, {answer.num_dead:,} | {beside} | {_cells(both)} |", flush=True)


def _cells(both: Sequence[tuple[Measurement, Measurement]]) -> str:
    cells = []
    for name in ("seconds", "cpu"):
        ours, theirs = ([getattr(pair[at], name) for pair in both] for at in (0, 1))
        cells.append(f"{_spread(ours, '.3g')} / {_spread(theirs, '.3g')}")
        cells.append(_spread([one / other for one, other in zip(ours, theirs, strict=True)], ".2f"))
    peaks = " / ".join(f"{max(pair[at].peak_mb for pair in both):.0f}" for at in (0, 1))
    return " | ".join((*cells, peaks))


def _spread(values: Sequence[float], form: str) -> str:
    """Median (range)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


if __name__ == "__main__":
    main()
