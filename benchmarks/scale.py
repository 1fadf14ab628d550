"""Time and memory of the reduction of a large log, beside a bare DuckDB scan and a Python loop over the same files.

Run `python benchmarks/scale.py` (3 million rows, about 1 GB, in a temporary folder that is removed). Each measurement
is a process of its own, with its imports done before the clock starts; what is compared is interleaved, so that a busy
machine slows all of it alike. The bare scan asks DuckDB for nothing but how many values the same four columns hold.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NUM_ROWS, NUM_FILES, GROUP_SIZE, NUM_PROMPTS = 3_000_000, 200, 8, 7_500
COLUMNS = ("step", "group_id", "prompt_id", "reward")
CONTENDERS = ("scan", "reduction", "loop")


def main() -> None:
    """Print the table, or one measurement of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=NUM_ROWS)
    parser.add_argument("--files", type=int, default=NUM_FILES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to make the temporary folder")
    parser.add_argument("--measure", nargs=2, metavar=("CONTENDER", "FOLDER"))
    arguments = parser.parse_args()
    if arguments.measure:
        name, folder = arguments.measure
        print(json.dumps(measure(name, Path(folder))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="gradscope-scale-") as folder:
        make_log(Path(folder), arguments.rows, arguments.files)
        num_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(f"{arguments.rows} rows, {num_bytes / 1e9:.2f} GB, {arguments.files} files")
        report([{name: run(name, folder) for name in CONTENDERS} for _ in range(arguments.repeats)])


def make_log(folder: Path, num_rows: int, num_files: int) -> None:
    """A run of `num_files` steps: groups of 8, rewards by the difficulty of the prompt, 300 bytes of text a row."""
    draw = random.Random(0)
    difficulty = [draw.betavariate(0.5, 0.5) for _ in range(NUM_PROMPTS)]
    text = "so the digits add up and the carry moves on " * 6
    per_file = num_rows // num_files
    for step in range(1, num_files + 1):
        with (folder / f"{step}.jsonl").open("w", encoding="utf-8") as stream:
            for row in range(per_file):
                group = row // GROUP_SIZE
                prompt = (step * 1867 + group) % NUM_PROMPTS
                reward = float(draw.random() < difficulty[prompt])
                stream.write(
                    f'{{"step": {step}, "group_id": "{step}-{group}", "prompt_id": "p{prompt}", "reward": {reward}, '
                    f'"completion": "{text}{row}"}}\n'
                )


def run(name: str, folder: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, folder: Path) -> dict[str, float]:
    """Seconds by the clock and of all cores, peak memory of the process in MB, and the groups that were found."""
    files = sorted(folder.iterdir(), key=lambda file: int(file.stem))
    work = {"scan": scan, "reduction": reduction, "loop": loop}[name](files)
    started, used = time.perf_counter(), time.process_time()
    count = work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    num_groups, num_dead = count()
    return {"seconds": seconds, "cpu": cpu, "peak_mb": peak / 1e6, "groups": num_groups, "dead": num_dead}


Work = Callable[[], Callable[[], tuple[int, int]]]
"""What is measured; it returns what counts groups and dead groups afterwards."""


def scan(files: list[Path]) -> Work:
    """DuckDB reads the four columns of all files in one query."""
    import duckdb

    types = ", ".join(f"{name}: '{'JSON' if name == 'reward' else 'VARCHAR'}'" for name in COLUMNS)
    counts = ", ".join(f"count({name})" for name in COLUMNS)
    query = f"SELECT {counts} FROM read_json(?, format='newline_delimited', ignore_errors=true, columns={{{types}}})"

    def work() -> Callable[[], tuple[int, int]]:
        duckdb.connect().execute(query, [[str(file) for file in files]]).fetchall()
        return lambda: (0, 0)

    return work


def reduction(files: list[Path]) -> Work:
    """Ours, up to the table of groups."""
    from gradscope.rollouts.readers.flat.duckdb_scan import Keys
    from gradscope.rollouts.readers.flat.reduction import reduce_files

    keys = Keys(rewards=("reward",), step="step", group="group_id", prompt="prompt_id", from_text=False)

    def work() -> Callable[[], tuple[int, int]]:
        table = reduce_files(files, keys, lambda _: ())
        groups = table["rewards"].to_pylist
        return lambda: (len(table), sum(len({rollout["0"] for rollout in group}) == 1 for group in groups()))

    return work


def loop(files: list[Path]) -> Work:
    """The few lines that anybody would write."""

    def work() -> Callable[[], tuple[int, int]]:
        groups: dict[tuple[int, str], list[float]] = {}
        for file in files:
            with file.open(encoding="utf-8") as stream:
                for line in stream:
                    row = json.loads(line)
                    groups.setdefault((row["step"], row["group_id"]), []).append(float(row["reward"]))
        return lambda: (len(groups), sum(len(set(rewards)) == 1 for rewards in groups.values()))

    return work


def report(rounds: list[dict[str, dict[str, float]]]) -> None:
    """Medians, and the ratios of each round."""
    print("| | seconds: median (range) | of all cores | peak memory, MB |")
    print("|---|---|---|---|")
    for name in CONTENDERS:
        seconds = [one[name]["seconds"] for one in rounds]
        cpu = statistics.median(one[name]["cpu"] for one in rounds)
        middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
        peak = max(one[name]["peak_mb"] for one in rounds)
        print(f"| {name} | {middle:.1f} ({low:.1f}-{high:.1f}) | {cpu:.1f} | {peak:.0f} |")
    for top, bottom in (("reduction", "scan"), ("loop", "reduction")):
        for kind, what in (("seconds", "by the clock"), ("cpu", "of all cores")):
            ratios = [one[top][kind] / one[bottom][kind] for one in rounds]
            middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
            print(f"{top} / {bottom}, seconds {what}: {middle:.2f} ({low:.2f}-{high:.2f})")
    found = {(one[name]["groups"], one[name]["dead"]) for one in rounds for name in ("reduction", "loop")}
    groups, dead = found.pop()
    print(f"groups {groups:.0f}, of them dead {dead:.0f}; reduction and loop agree: {not found}")


if __name__ == "__main__":
    main()
