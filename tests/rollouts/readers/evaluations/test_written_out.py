"""Samples that tables write out: expected lists are written by hand, or by ``str`` and ``json.dumps``."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations.written_out import with_lists


@pytest.mark.parametrize(
    ("row", "lists"),
    [
        ({"sample_0": "a", "sample_0_correct": "True", "sample_1": "b", "sample_1_correct": "False"}, [1.0, 0.0]),
        ({"run1_correct": True, "run2_correct": False, "run3_correct": ""}, [1.0, 0.0, None]),
        ({"correct_run_1": 1, "correct_run_2": 0}, [1.0, 0.0]),
    ],
)
def test_numbered_columns_are_the_samples_of_a_prompt(row: dict[str, Any], lists: list[Any]) -> None:
    written, of_samples = with_lists(row)
    assert written["correct"] == lists
    assert "correct" in of_samples


@pytest.mark.parametrize(
    "row",
    [
        {"correct_1": 1, "correct_3": 0},  # not counted up
        {"model_1_correct": 1, "model_2_correct": 0},
        {"turn_1_reward": 1, "turn_2_reward": 0},
        {"choice_0": "a", "choice_1": "b", "correct": 1},
        {"reward": [1.0], "reward_0": 1, "reward_1": 0},
        {"scores": "[a, b]"},
        {"scores": "[1, 0"},
        {"scores": "[]"},
        {"response": "[1, 0]"},
    ],
)
def test_other_rows_stay_as_they_are(row: dict[str, Any]) -> None:
    assert with_lists(row) == (row, frozenset())


def test_numbered_rewards_alone_may_be_of_several_functions() -> None:
    assert with_lists({"reward_0": 1, "reward_1": 0.5})[1] == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        *("[1, 0, 1]", "[1.0,0.0,1.0]", "[True, False, True]", "(1, 0, 1)", "[1. 0.\n 1.]", "[true,false,true]"),
        *("[np.float64(1.0), np.float64(0.0), np.float64(1.0)]", "[tensor(1.), tensor(0.), tensor(1.)]"),
    ],
)
def test_a_list_that_is_text_is_a_list(text: str) -> None:
    assert with_lists({"scores": text})[0]["scores"] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("write", [str, json.dumps])
def test_texts_of_as_many_responses_are_told_apart(write: Any) -> None:
    texts = ["it's", "a, b", "[c]"]
    row = {"scores": "[1, 0, 0]", "responses": write(texts)}
    assert with_lists(row)[0]["responses"] == texts


def test_a_table_with_a_column_a_sample_is_read(tmp_path: Path) -> None:
    lines = ["question,completion_0,completion_1,reward_0,reward_1", "one?,a,b,1,1", "two?,a,b,0,1"]
    (tmp_path / "wide.csv").write_text("\n".join(lines))
    groups = read_run(tmp_path / "wide.csv").groups
    assert [[rollout.reward for rollout in group.rollouts] for group in groups] == [[1.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("lines", "message", "name"),
    [
        (["prompt_id,reward_0,reward_1", "1,1,1", "2,0,1"], "'reward' in a row, which numbered columns", "reward"),
        (["prompt_id,rewards", '1,"[1, 1]"', '2,"[0, 1]"'], "has a list 'rewards' in a row, and no list", "rewards"),
    ],
)
def test_rewards_alone_are_asked_about_and_the_answer_is_taken(
    tmp_path: Path, lines: list[str], message: str, name: str
) -> None:
    (tmp_path / "wide.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=message) as refused:
        read_run(tmp_path / "wide.csv")
    assert refused.value.hint == f"If each entry is a sample, name the list: --reward-column {name}"
    run = read_run(tmp_path / "wide.csv", ReadOptions(columns=ColumnNames(reward=name)))
    assert [[rollout.reward for rollout in group.rollouts] for group in run.groups] == [[1.0, 1.0], [0.0, 1.0]]


def test_objects_under_numbered_keys_are_samples_of_one_policy(tmp_path: Path) -> None:
    rows = [
        {"task_id": f"t{at}", **{f"run_{k}": {"output": "x", "correct": k > at} for k in range(3)}} for at in range(2)
    ]
    (tmp_path / "runs.json").write_text(json.dumps(rows))
    run = read_run(tmp_path / "runs.json")
    assert [len(group.rollouts) for group in run.groups] == [3, 3]
    assert {rollout.policy for group in run.groups for rollout in group.rollouts} <= {None, ""}
