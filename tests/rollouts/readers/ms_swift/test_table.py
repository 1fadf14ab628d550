from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside
from tests.rollouts.readers.same_table import assert_reduced_alike

ROWS = 4
CELLS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), 10**400, 1 << 60),
    *("", "1", "2.0", "x", "\ud800", "é", [], [1], ["q"], {}, {"a": 1}, [{"role": "user", "content": "q"}]),
)
KEYS = ("step", "prompt", "completion", "Right", "Format", "advantages", "entropy")


def line(**cells: Any) -> dict[str, Any]:
    return {
        "step": ["1"] * ROWS,
        "prompt": ["p", "p", "q", "q"],
        "completion": ["a", "b", "c", "d"],
        "Right": [1.0, 0.0, 0.0, 1.0],
        "Format": [1.0, 1.0, 0.5, None],
        "advantages": [0.7, -0.7, -0.7, 0.7],
        **cells,
    }


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return path


@st.composite
def lines(draw: st.DrawFn) -> dict[str, Any] | str:
    """A line, some of whose cells, lists or keys are others."""
    row = line(
        step=draw(st.sampled_from([["1"] * 4, ["2"] * 4, [3] * 4, ["1", "1", "2", "2"], ["2", "1", "2", "1.0"]]))
    )
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from(KEYS))
        match draw(st.sampled_from(["cell", "list", "short", "other", "without"])):
            case "cell":
                cells = [*row[key]] if isinstance(row.get(key), list) and row[key] else [0.5] * ROWS
                cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(CELLS))
                row[key] = cells
            case "list":
                row[key] = [draw(st.sampled_from(CELLS))] * ROWS
            case "short":
                row[key] = [1.0] * (ROWS - 1)
            case "other":
                row[key] = draw(st.sampled_from(CELLS))
            case _:
                row.pop(key, None)
    text = json.dumps(row)
    return draw(st.sampled_from([text, text, text, text, text, text[:-3], "", "[1]", "null", text + text]))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=st.lists(st.tuples(lines(), st.integers(1, 3)), min_size=1, max_size=4),
    arguments=st.sampled_from(
        [None, {"num_generations": 2}, {"reward_weights": [1.0, 0.5]}, {"reward_weights": [1e308, -1e308]}]
    ),
)
def test_messy_logs_have_the_answers_of_the_row_reader(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[tuple[dict[str, Any] | str, int]],
    arguments: dict[str, Any] | None,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = write(folder / "completions.jsonl", line(), *(one for one, times in found for _ in range(times)))
    options = ReadOptions()
    if arguments is not None:
        (folder / "args.json").write_text(json.dumps(arguments))
        options = ReadOptions(trainer_args=folder / "args.json")
    assert_reduced_alike(log, options)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("cell", CELLS, ids=repr)
def test_each_odd_cell_alone_has_the_answer_of_the_row_reader(tmp_path: Path, key: str, cell: Any) -> None:
    odd = line(entropy=[0.1] * ROWS)
    odd[key] = [cell, *odd[key][1:]]
    assert_reduced_alike(write(tmp_path / "completions.jsonl", line(), odd, odd))
    assert_reduced_alike(write(tmp_path / "completions.jsonl", odd))


def test_the_sample_of_the_format() -> None:
    run = assert_reduced_alike(REPOSITORY / "fixtures" / "logs" / "ms_swift")
    assert isinstance(run, Run)
    assert rewards_of(run) == {"10:0": (2.0, 1.0), "10:1": (1.0, 1.0), "20:0": (2.0, 2.0), "20:1": (1.0, 2.0)}


def test_a_line_that_lacks_a_reward_function_has_the_others(tmp_path: Path) -> None:
    without = line(step=["2"] * ROWS)
    del without["Format"]
    run = assert_reduced_alike(write(tmp_path / "completions.jsonl", line(), without))
    assert isinstance(run, Run)
    assert rewards_of(run)["2:0"] == (1.0, 0.0)
    assert run.groups[2].rollouts[0].rewards == {"Right": 1.0, "Format": None}


def test_rows_without_a_finite_reward_are_set_aside_by_reason(tmp_path: Path) -> None:
    odd = line(Right=[None, 1e308, 1.0, 1.0], Format=[None, 1e308, 1.0, 1.0])
    run = assert_reduced_alike(write(tmp_path / "completions.jsonl", odd))
    assert isinstance(run, Run)
    assert rewards_of(run)["1:0"] == (None, None)
    assert set_aside(run) == {"the reward is missing": 1, "the reward is not finite": 1}


def test_a_step_that_a_restart_logs_again_has_groups_of_its_own(tmp_path: Path) -> None:
    again = line(Right=[0.0] * ROWS, prompt=["r", "r", "s", "s"])
    log = write(tmp_path / "completions.jsonl", line(), line(step=["2"] * ROWS, completion=["e"] * ROWS), again)
    run = assert_reduced_alike(log)
    assert isinstance(run, Run)
    assert list(rewards_of(run)) == ["1:0", "1:1", "1:2", "1:3", "2:0", "2:1"]
    assert len({group.prompt_id for group in read_run(log).groups if group.step == 1}) == 4
