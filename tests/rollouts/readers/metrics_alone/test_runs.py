"""What rows say of a step, against a walk over them one by one."""

import random
from typing import Any

import numpy as np

from gradscope.rollouts.readers.metrics_alone.rows import Piece, as_tables
from gradscope.rollouts.readers.metrics_alone.runs import RunRows

Metrics = dict[int, dict[str, float]]


def read(rows: list[dict[str, Any]], size: int) -> tuple[list[tuple[Metrics, int, str, int]], int]:
    """The runs of rows in pieces of a size: metrics, rows, first place and how often it was resumed; and conflicts."""
    run_rows = RunRows()
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        piece = Piece(where="f", numbers=np.arange(start + 1, start + 1 + len(block)), tables=as_tables(block))
        assert not len(run_rows.add(piece, ("step",)))
    runs = [
        ({step: dict(row) for step, row in run.metrics().items()}, run.num_rows, run.first, len(run.sentences))
        for run in run_rows.runs()
    ]
    return runs, run_rows.num_conflicts


def walked(rows: list[dict[str, Any]]) -> tuple[list[tuple[Metrics, int, str, int]], int]:
    """The same, row after row."""
    runs: list[list[Any]] = []
    last, conflicts = -1, 0
    for number, row in enumerate(rows, start=1):
        step, values = row["step"], {key: float(value) for key, value in row.items() if key != "step"}
        if not runs:
            runs.append([{}, 0, f"f:{number}", 0])
        metrics = runs[-1][0]
        logged = metrics.get(step, {})
        is_other = any(logged.get(key, value) != value for key, value in values.items())
        if is_other and step == last:
            conflicts += 1
        elif is_other and step < last and step <= min(metrics):
            runs.append([{}, 0, f"f:{number}", 0])
        elif is_other and step < last:
            runs[-1][3] += 1
            for later in [entry for entry in metrics if entry >= step]:
                del metrics[later]
        runs[-1][0].setdefault(step, {}).update(values)
        runs[-1][1] += 1
        last = step
    return [(dict(sorted(entry.items())), *rest) for entry, *rest in runs], conflicts  # type: ignore[misc]


def test_runs_and_resumed_runs_are_those_of_a_walk() -> None:
    chance = random.Random(0)
    seen = set()
    for trial in range(400):
        step, rows = 0, []
        for _ in range(chance.randrange(1, 30)):
            step = max(0, step + chance.choice([0, 1, 1, 1, -1, -3, -8]))
            keys = chance.choice([["a"], ["b"], ["a", "b"], []])
            rows.append({"step": step, **{key: chance.randrange(2) for key in keys}})
        expected = walked(rows)
        assert read(rows, chance.choice([1, 4, 100])) == expected, (trial, rows)
        seen.add((len(expected[0]) > 1, any(run[3] for run in expected[0]), expected[1] > 0))
    assert len(seen) == 8


def test_rows_without_a_step_are_counted_and_bad_ones_reported() -> None:
    rows = RunRows()
    cells = [{"step": 1, "a": 1}, {"a": 2}, {"step": "x", "a": 3}, {"step": None, "a": 4}, {"step": -2}]
    piece = Piece(where="f", numbers=np.arange(5), tables=as_tables(cells))
    assert rows.add(piece, ("step",)).tolist() == [2, 4]
    assert rows.num_without_step == 2
    (run,) = rows.runs()
    assert (run.metrics(), run.num_rows) == ({1: {"a": 1.0}}, 1)


def test_names_of_runs_and_of_their_parts() -> None:
    rows = RunRows()
    cells = [{"step": step, "run": name, "a": value} for name, step, value in (("x", 1, 1), ("y", 1, 1), ("x", 2, 1))]
    again = [{"step": 1, "run": "x", "a": 2}, {"step": 1, "a": 3}]
    rows.add(Piece(where="f", numbers=np.arange(5), tables=as_tables([*cells, *again])), ("step",))
    assert [run.name for run in rows.runs()] == ["x/1", "y", "x/2", "1"]
