import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import assert_reduced_alike

LOG = REPOSITORY / "fixtures" / "logs" / "ms_swift"


def line(**cells: Any) -> dict[str, Any]:
    row = {"step": ["1"] * 2, "prompt": ["q"] * 2, "completion": ["a", "b"], "Right": [1.0, 0.0]}
    return {**row, "advantages": [0.7, -0.7], **cells}


def test_blocks_of_a_prompt_are_cut_by_the_advantages_where_prompts_repeat() -> None:
    run = read_run(LOG)
    assert rewards_of(run) == {"10:0": (2.0, 1.0), "10:1": (1.0, 1.0), "20:0": (2.0, 2.0), "20:1": (1.0, 2.0)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.rewards, rollout.advantage) == ({"MathAccuracy": 1.0, "Format": 1.0}, 0.7071)
    assert "weight 1 each" in run.source.inferred[0]
    assert "confirmed by the logged advantages" in run.source.inferred[1]
    assert "dynamic_sample" in run.source.missing[0]


def test_given_weights_make_the_reward(tmp_path: Path) -> None:
    settings = tmp_path / "args.json"
    settings.write_text(json.dumps({"reward_weights": [1.0, 0.5], "num_generations": 2}))
    run = read_run(LOG, ReadOptions(trainer_args=settings))
    assert rewards_of(run)["10:0"] == (1.5, 0.5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("1.0", r"gives reward_weights \[1\.0\]; the log has 2 reward functions"),
        *(
            (f"1.0, {one}", r"reward_weights is .\[1\.0, ")
            for one in ("NaN", "Infinity", "1" + "0" * 400, '"1"', "null")
        ),
    ],
)
def test_given_weights_that_cannot_be_are_refused(tmp_path: Path, weights: str, message: str) -> None:
    settings = tmp_path / "args.json"
    settings.write_text(f'{{"reward_weights": [{weights}]}}')
    with pytest.raises(InputError, match=message):
        read_run(LOG, ReadOptions(trainer_args=settings))


def test_a_batch_that_is_logged_again_counts_once(tmp_path: Path) -> None:
    run = read_run(write_lines(tmp_path / "completions.jsonl", line(), line(step=["2"] * 2)))
    assert rewards_of(run) == {"1:0": (1.0, 0.0)}
    assert "1 line that repeat" in run.source.inferred[-1]


def test_lines_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    lines = [line(), line(step=["x", "1"]), line(advantages=[0.7]), line(Right=[None, 1.0], step=[3, 3])]
    run = read_run(write_lines(tmp_path / "completions.jsonl", *lines))
    assert rewards_of(run) == {"1:0": (1.0, 0.0), "3:0": (None, 1.0)}
    assert set_aside(run) == {
        "the step is not a whole number": 1,
        "step, prompt, completion and advantages are not lists of one length": 1,
        "the reward is missing": 1,
    }


def test_a_log_without_usable_lines_or_rewards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no line of completions"):
        read_run(write_lines(tmp_path / "completions.jsonl", line(step=["x", "y"])))
    with pytest.raises(InputError, match="has no list of rewards before `advantages`"):
        read_run(write_lines(tmp_path / "completions.jsonl", line(Right=["a", "b"])))


def test_columns_behind_the_advantages_are_no_rewards_and_tell_no_batch_from_another(tmp_path: Path) -> None:
    further = {"solution": ["4", None], "num_turns": [1, 2], "entropy": [0.5, 0.25], "images": [[1]], "note": "x"}
    again = {**further, "entropy": [0.4, 0.2]}
    run = read_run(
        write_lines(tmp_path / "completions.jsonl", line(**further), line(step=["2", "2"], **again), line(**again))
    )
    assert rewards_of(run) == {"1:0": (1.0, 0.0)}
    assert run.groups[0].rollouts[0].rewards == {"Right": 1.0}
    assert "2 lines that repeat" in run.source.inferred[-1]


def test_the_log_of_several_steps_in_one_line(tmp_path: Path) -> None:
    both = {name: [*cells, *cells] for name, cells in line().items()}
    run = read_run(write_lines(tmp_path / "completions.jsonl", {**both, "step": ["1", "1", "2.0", "2"]}))
    assert run.steps == (1,)
    other = {**both, "step": ["1", "1", "2", "2"], "completion": ["a", "b", "c", "d"]}
    assert rewards_of(read_run(write_lines(tmp_path / "completions.jsonl", other))) == {
        "1:0": (1.0, 0.0),
        "2:0": (1.0, 0.0),
    }


ROWS = 4
CELLS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), 10**400, 1 << 60),
    *("", "1", "2.0", "x", "\ud800", "é", [], [1], ["q"], {}, {"a": 1}, [{"role": "user", "content": "q"}]),
)
KEYS = ("step", "prompt", "completion", "Right", "Format", "advantages", "entropy")


def batch(**cells: Any) -> dict[str, Any]:
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
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("cell", CELLS, ids=repr)
def test_each_odd_cell_alone_has_the_answer_of_the_row_reader(tmp_path: Path, key: str, cell: Any) -> None:
    odd = batch(entropy=[0.1] * ROWS)
    odd[key] = [cell, *odd[key][1:]]
    assert_reduced_alike(write(tmp_path / "completions.jsonl", batch(), odd, odd))
    assert_reduced_alike(write(tmp_path / "completions.jsonl", odd))


def test_the_sample_of_the_format() -> None:
    run = assert_reduced_alike(REPOSITORY / "fixtures" / "logs" / "ms_swift")
    assert isinstance(run, Run)
    assert rewards_of(run) == {"10:0": (2.0, 1.0), "10:1": (1.0, 1.0), "20:0": (2.0, 2.0), "20:1": (1.0, 2.0)}


def test_a_line_that_lacks_a_reward_function_has_the_others(tmp_path: Path) -> None:
    without = batch(step=["2"] * ROWS)
    del without["Format"]
    run = assert_reduced_alike(write(tmp_path / "completions.jsonl", batch(), without))
    assert isinstance(run, Run)
    assert rewards_of(run)["2:0"] == (1.0, 0.0)
    assert run.groups[2].rollouts[0].rewards == {"Right": 1.0, "Format": None}


def test_rows_without_a_finite_reward_are_set_aside_by_reason(tmp_path: Path) -> None:
    odd = batch(Right=[None, 1e308, 1.0, 1.0], Format=[None, 1e308, 1.0, 1.0])
    run = assert_reduced_alike(write(tmp_path / "completions.jsonl", odd))
    assert isinstance(run, Run)
    assert rewards_of(run)["1:0"] == (None, None)
    assert set_aside(run) == {"the reward is missing": 1, "the reward is not finite": 1}


def test_a_step_that_a_restart_logs_again_has_groups_of_its_own(tmp_path: Path) -> None:
    again = batch(Right=[0.0] * ROWS, prompt=["r", "r", "s", "s"])
    log = write(tmp_path / "completions.jsonl", batch(), batch(step=["2"] * ROWS, completion=["e"] * ROWS), again)
    run = assert_reduced_alike(log)
    assert isinstance(run, Run)
    assert list(rewards_of(run)) == ["1:0", "1:1", "1:2", "1:3", "2:0", "2:1"]
    assert len({group.prompt_id for group in read_run(log).groups if group.step == 1}) == 4
