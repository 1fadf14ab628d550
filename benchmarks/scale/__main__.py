"""Measures `gradscope degeneracy` on made-up logs of each kind, each beside a bare scan of the same files.

    python -m benchmarks.scale
    python -m benchmarks.scale --kind verl --rows 30000000 --bad-lines --folder /var/tmp

Both are processes of their own, from start-up to the last line: the whole command with all its statistics, and a Python
process with one DuckDB query that reads the columns which the answer needs and groups them alike (of slime's pickles
`torch.load(weights_only=True)` and a loop). Rounds are interleaved, so that a busy machine slows all of it alike; both
have read the files once before, and gave the same numbers of groups, dead groups and rollouts. Logs are written to a
temporary folder that is removed, one at a time, each of about 1 GB or less unless `--rows` says otherwise.

`--kind generic --rows 160 --repeats 5` measures a small log, the kind `follow` the wait of `degeneracy --follow` for
a step that is written to a verl log.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scale import text_logs, token_logs
from benchmarks.scale.kind import Kind
from benchmarks.scale.made_up import MadeUpRun, run_of
from benchmarks.scale.measure import EVERY, Measurement, answer_of, answer_of_peer, degeneracy, follow, measured

KINDS = {kind.name: kind for kind in (*text_logs.KINDS, *token_logs.KINDS)}
FOLLOW = "follow"
HEAD = (
    "| log | groups, of them dead | beside | seconds | ratio | seconds of all cores | ratio | peak memory, MB |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Print the table, and a sentence of following."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*KINDS, FOLLOW)
    parser.add_argument("--kind", nargs="+", choices=names, metavar="NAME", default=names, help=", ".join(names))
    parser.add_argument("--rows", type=int, help="rows of each log")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, and steps that are written while it follows")
    parser.add_argument("--folder", type=Path, help="where to make the temporary folders")
    parser.add_argument("--bad-lines", action="store_true", help="half a line in the middle of every file")
    arguments = parser.parse_args()
    kinds = [KINDS[name] for name in arguments.kind if name in KINDS]
    whole = [kind.name for kind in kinds if not kind.has_lines]
    if arguments.bad_lines and whole:
        parser.error(f"--bad-lines breaks lines, and files of {', '.join(whole)} have none: name others with --kind.")
    if kinds:
        print(HEAD, flush=True)
    for kind in kinds:
        _measure(kind, arguments)
    if FOLLOW in arguments.kind:
        _measure_follow(arguments)


def _measure(kind: Kind, arguments: argparse.Namespace) -> None:
    """Print the line of a kind.

    Raises:
        SystemExit: The answers differ.
    """
    with _temporary_folder(arguments.folder) as name:
        folder = Path(name)
        run = _made(kind, folder, arguments)
        commands = (degeneracy(folder), kind.peer(folder))
        beside = "scan" if kind.scan else "torch loop"
        answer, other = answer_of(folder), answer_of_peer(commands[1])
        if other != answer:
            raise SystemExit(f"{kind.name}: gradscope says {answer}, the {beside} {other}.")
        both = [(measured(commands[0]), measured(commands[1])) for _ in range(arguments.repeats)]
        broken = ", a broken line a file" if arguments.bad_lines else ""
        log = f"{kind.name}, {run.num_rows:,} rows, {_gigabytes(folder):.2f} GB{broken}"
        print(f"| {log} | {answer.num_groups:,}, {answer.num_dead:,} | {beside} | {_cells(both)} |", flush=True)


def _measure_follow(arguments: argparse.Namespace) -> None:
    with _temporary_folder(arguments.folder) as name:
        folder = Path(name) / "run"
        folder.mkdir()
        run = _made(KINDS["verl"], folder, arguments)
        size = _gigabytes(folder)
        told, waited = follow(folder, run, arguments.repeats)
    print(
        f"\nFollowing {size:.2f} GB of verl's with --every {EVERY:g}: the last step of the log is told {told:.1f} "
        f"seconds after the start, a further one {_spread(waited, '.1f')} seconds after it is written."
    )


def _made(kind: Kind, folder: Path, arguments: argparse.Namespace) -> MadeUpRun:
    run = run_of(arguments.rows or kind.num_rows, kind.rows_a_step)
    kind.make(folder, run, arguments.bad_lines)
    return run


def _temporary_folder(parent: Path | None) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=parent and parent.resolve(), prefix="gradscope-scale-")


def _gigabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9


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
