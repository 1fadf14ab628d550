"""What rows say of a step, against a walk over them one by one."""

import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.readers.metrics_alone.runs import (
    BAD_STEP,
    NO_STEP,
    MetricTable,
    Piece,
    RunRows,
    as_tables,
    by_run,
    hold_rollouts,
    numbers_by_key,
    steps_in,
    unpivoted,
)
from gradscope.rollouts.run import Numbers

Metrics = dict[int, dict[str, float]]


def read(rows: list[dict[str, Any]], size: int) -> tuple[list[tuple[Metrics, int, str, int]], int]:
    """The runs of rows in pieces of a size: metrics, rows, first place and how often it was resumed; and conflicts."""
    run_rows = RunRows()
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        piece = Piece(source="f", numbers=np.arange(start + 1, start + 1 + len(block)), tables=as_tables(block))
        assert not len(run_rows.add(piece, ("step",)))
    runs = [
        ({step: dict(row) for step, row in run.metrics().items()}, run.num_rows, run.first, len(run.sentences))
        for run in run_rows.runs()
    ]
    return runs, run_rows.num_conflicts


def walked(rows: list[dict[str, Any]]) -> tuple[list[tuple[Metrics, int, str, int]], int]:
    """The same, row after row."""
    runs: list[list[Any]] = []
    last, conflicts = -1, set()
    for number, row in enumerate(rows, start=1):
        step, values = row["step"], {key: float(value) for key, value in row.items() if key != "step"}
        if not runs:
            runs.append([{}, 0, f"f:{number}", 0])
        metrics, following = runs[-1][0], rising(rows[number - 1 :])
        late, since = [], defaultdict[int, dict[str, Any]](dict)  # what is logged of each step since they went back
        for later in following:
            repeated = since[later["step"]]
            first = {key: value for key, value in later.items() if key not in repeated}
            if contradicts(first, metrics.get(later["step"], {})) and not contradicts(later, repeated):
                late.append(later["step"])
            repeated |= later
        if step < last and late and step <= min(metrics):
            runs.append([{}, 0, f"f:{number}", 0])
        elif step < last and late:
            runs[-1][3] += 1
            begin = step if step in late else next(row["step"] for row in following if row["step"] > step)
            for later in [entry for entry in metrics if entry >= begin]:
                del metrics[later]
        if step == last and contradicts(row, metrics.get(step, {})):
            conflicts.add((len(runs), step))
        runs[-1][0].setdefault(step, {}).update(values)
        runs[-1][1] += 1
        last = step
    return [(dict(sorted(entry.items())), *rest) for entry, *rest in runs], len(conflicts)  # type: ignore[misc]


def contradicts(row: dict[str, Any], logged: dict[str, Any]) -> bool:
    """Whether a row has another number than was logged."""
    return any(logged.get(key, value) != value for key, value in row.items() if key != "step")


def rising(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first rows, until steps go back."""
    falls = (index for index in range(1, len(rows)) if rows[index]["step"] < rows[index - 1]["step"])
    return rows[: next(falls, len(rows))]


@pytest.mark.slow
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


def test_steps_that_begin_again_with_each_epoch_count_on() -> None:
    rows = [{"epoch": epoch, "step": step, "loss": epoch} for epoch in range(3) for step in (0, 5)]
    runs, _ = read([*rows, *({**row, "loss": 9} for row in rows)], 4)
    assert [(list(metrics), first, num) for metrics, _, first, num in runs] == [
        ([1, 2, 3, 4, 5, 6], "f:1", 1),
        ([1, 2, 3, 4, 5, 6], "f:7", 1),
    ]


def test_names_of_runs_and_of_their_parts() -> None:
    rows = RunRows()
    cells = [{"step": step, "run": name, "a": value} for name, step, value in (("x", 1, 1), ("y", 1, 1), ("x", 2, 1))]
    repeated = [{"step": 1, "run": "x", "a": 2}, {"step": 1, "a": 3}]
    rows.add(Piece(source="f", numbers=np.arange(5), tables=as_tables([*cells, *repeated])), ("step",))
    assert [run.name for run in rows.runs()] == ["x/1", "y", "x/2", "1"]


@pytest.mark.parametrize(("name", "training", "held_out"), [("phase", "train", "eval"), ("is_eval", False, True)])
def test_rows_of_an_evaluation_have_metrics_of_their_own(name: str, training: object, held_out: object) -> None:
    trained = [{"step": step, name: training, "reward": 0.5} for step in (1, 2)]
    evaluated = [{"step": step, name: held_out, "reward": 0.9} for step in (1, 2, 3)]
    for cells, keys in (([*trained, *evaluated], {"reward", "eval/reward"}), (evaluated, {"reward"})):
        rows = RunRows()
        rows.add(Piece(source="f", numbers=np.arange(len(cells)), tables=as_tables(cells)), ("step",))
        (run,) = rows.runs()
        metrics = {step: dict(row) for step, row in run.metrics().items()}
        assert {key for row in metrics.values() for key in row} == keys
        assert [row.get("eval/reward", row.get("reward")) for row in metrics.values()] == [0.9] * 3
        assert [metrics[step]["reward"] for step in (1, 2)] == ([0.5] if cells != evaluated else [0.9]) * 2
        assert rows.num_held_out == 3


def table(*rows: dict[str, Any]) -> MetricTable:
    (only,) = as_tables(rows)
    return only


def numbers(*rows: dict[str, Any]) -> dict[str, dict[int, float]]:
    values_of: dict[str, dict[int, float]] = {}
    for part in as_tables(rows):
        for key, i, values in numbers_by_key(part.columns, part.rows):
            values_of.setdefault(key, {}).update(zip(i.tolist(), values.tolist(), strict=True))
    return values_of


def test_rows_with_the_same_keys_are_a_table() -> None:
    tables = as_tables([{"a": 1, "b": 2}, {"a": 3}, {"a": 4, "b": 5}], ["x", "x", "y"])
    assert [(part.run, part.rows.tolist(), dict(part.columns)) for part in tables] == [
        ("x", [0], {"a": [1], "b": [2]}),
        ("x", [1], {"a": [3]}),
        ("y", [2], {"a": [4], "b": [5]}),
    ]
    assert Piece(source="f", numbers=np.array([4, 9]), tables=tables).location(1) == "f:9"


def test_numbers_of_any_kind_by_their_keys() -> None:
    read = numbers(
        {"a": 1, "b": "0.5", "c": {"d": 2.0, "e": {"f": "x"}}, "data": {"g": 1}, "h": True, "i": None, "j": "NaN"},
        {"a": 10**400, "b": "", "c": {"d": "-inf"}, "data": 3.0, "h": [1], "i": -(10**400)},
    )
    assert math.isnan(read.pop("j")[0])
    assert read == {
        "a": {0: 1.0, 1: math.inf},
        "b": {0: 0.5},
        "c/d": {0: 2.0, 1: -math.inf},
        "g": {0: 1.0},
        "data": {1: 3.0},
        "i": {1: -math.inf},
    }


@pytest.mark.parametrize(
    ("cells", "steps"),
    [
        ([1, 2], [1, 2]),
        ([1, -1], [1, BAD_STEP]),
        ([1, 1 << 80], [1, BAD_STEP]),
        ([1.0, 2.5, math.nan, -3.0], [1, BAD_STEP, BAD_STEP, BAD_STEP]),
        (["1", "3/30", "3/x", "x", "", "2.0"], [1, 3, BAD_STEP, BAD_STEP, NO_STEP, 2]),
        ([None, True, [1], {}], [NO_STEP, BAD_STEP, BAD_STEP, BAD_STEP]),
        ([1, (1 << 53) + 1, 1.0], [1, BAD_STEP, 1]),
    ],
)
def test_steps(cells: list[Any], steps: list[int]) -> None:
    assert steps_in(table(*({"step": cell} for cell in cells)), ["other", "step"]).tolist() == steps


def test_the_first_column_of_steps_that_a_row_has_counts() -> None:
    sparse = Numbers(np.array([1]), np.array([7.0]))
    metrics = MetricTable(rows=np.arange(3), columns={"a": sparse, "b": [1, 2, None]})
    assert steps_in(metrics, ["a", "b"]).tolist() == [1, 7, NO_STEP]
    assert (hold_rollouts(metrics.columns), hold_rollouts({"text": ["x"]})) == (False, True)
    assert all(hold_rollouts({name: ["(b)"], "step": [1.0]}) for name in ("answer", "tool", "observation", "thought"))


def test_a_long_table_becomes_rows_of_its_metrics() -> None:
    long = table(
        {"step": 1, "metric": "reward", "value": 0.5},
        {"step": 2, "metric": "kl", "value": 0.1},
        {"step": 3, "metric": None, "value": 0.2},
    )
    parts = [
        (part.rows.tolist(), {key: list(cells) for key, cells in part.columns.items()}) for part in unpivoted(long)
    ]  # type: ignore[arg-type]
    assert parts == [
        ([0], {"step": [1], "reward": [0.5]}),
        ([1], {"step": [2], "kl": [0.1]}),
        ([2], {"step": [3], "metric": [None], "value": [0.2]}),
    ]
    wide = table({"step": 1, "name": "a", "value": 0.1, "loss": 2.0, "kl": 0.0, "reward": 1.0})
    assert [part.columns for part in unpivoted(wide)] == [wide.columns]
    assert unpivoted(table({"step": 1, "name": "a"}))[0].columns.keys() == {"step", "name"}


def test_rows_of_several_runs() -> None:
    rows = table(*({"run": name, "step": step} for step, name in enumerate(["a", "b", "a", 3])))
    runs = [(part.run, part.rows.tolist()) for part in by_run(rows, ["id", "run"])]
    assert runs == [("a", [0, 2]), ("b", [1]), ("", [3])]
    named = MetricTable(rows=rows.rows, columns=rows.columns, run="x")
    assert by_run(named, ["run"]) == [named]
    numbered = MetricTable(rows=rows.rows, columns={"run": Numbers(None, np.arange(4.0))}, run="")
    assert by_run(numbered, ["run"]) == [numbered]
