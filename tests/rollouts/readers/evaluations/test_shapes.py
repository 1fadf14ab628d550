import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations.shapes import (
    PromptSamples,
    prompt_rows,
    refuse_lone_list,
    samples_of,
    with_lists,
)
from tests.rollouts.readers.lines import naming, refusal, refused, write_rows
from tests.rollouts.readers.reduced import assert_same

LEAF = {"scores": [1.0, 0.0], "responses": ["a", "b"]}


def nested(levels: int) -> Any:
    """Samples that lie so many levels below the document."""
    document: Any = LEAF
    for level in range(levels):
        document = {"deeper": document} if level % 2 else [document]
    return document


def shape(row: dict[str, Any], reward: str | None = None) -> PromptSamples:
    samples = samples_of(row, ColumnNames(reward=reward))
    assert isinstance(samples, PromptSamples)
    return samples


@pytest.mark.parametrize(("levels", "depth"), [(1, {"depth": 1}), (3, {"depth": 3}), (12, {})])
def test_samples_are_read_as_deep_as_asked_by_default_twelve_levels_and_no_deeper(
    levels: int, depth: dict[str, int]
) -> None:
    assert [part for _, part, _ in prompt_rows(nested(levels), **depth)] == [LEAF]
    assert list(prompt_rows(nested(levels + 1), **depth)) == []


def test_the_outermost_mapping_with_a_shape_is_the_prompt() -> None:
    outer = {**LEAF, "more": LEAF}
    parts = [(("first",), outer), (("second", "0"), LEAF)]
    assert [part[:2] for part in prompt_rows({"first": outer, "second": [LEAF, 3, "text"]})] == parts


@pytest.mark.parametrize("counts", [(0, 0), (2, 3), (2, -1), (2, 0.5), (2, True), (True, 0), (1_000_001, 0), (2, None)])
def test_counts_that_cannot_be_say_so(counts: tuple[Any, Any]) -> None:
    assert samples_of({"n": counts[0], "c": counts[1]}) == "n and c are not counts with 0 <= c <= n and n >= 1"


def test_one_policy_a_key_is_a_sample_of_each() -> None:
    samples = shape({"id": 1, "big": {"output": "4", "correct": True}, "small": {"output": "5", "correct": False}})
    assert samples.shape == "one sample of each of 2 policies (big, small)"
    assert (samples.policies, samples.rewards, samples.texts) == (("big", "small"), (True, False), ("4", "5"))
    lists = {"id": 1, "cot": {"generation": ["4"], "score": 1}, "none": {"generation": None, "score": 0}}
    assert (shape(lists).rewards, shape(lists).texts) == ((1, 0), ("4", None))
    assert samples_of(lists | {"cot": {"generation": ["4", "5"], "score": 1}}) is None  # of a vote, or of the best
    assert samples_of({"id": 1, "big": {"correct": True}}) is None
    assert samples_of({"gsm8k": {"acc": True}, "mmlu": {"acc": True}}) is None  # lm-eval's `higher_is_better`


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "response": "a", "reward": 1.0, "scores": [0.1, 0.9, 0.5]},  # criteria of one response
        {"prompt": "q", "response": "a", "passed": [True, True, False]},  # tests of one response
        {"prompt": "q", "responses": ["a", "b"], "scores": [0.1, 0.9, 0.5]},
        {"prompt": "q", "criteria": ["clear", "right"], "scores": [0.1, 0.9]},
        {"prompt": "q", "rubric": [{"criterion": "clear", "score": 1}, {"criterion": "right", "score": 0}]},
        {"prompt": "q", "response": "a b", "rewards": [0.0, 1.0]},  # tokens of one response
        {"prompt": "q", "n": 3, "correct": True},
        {"prompt": "q", "n": 3, "passed": [True, False]},
        *({}, {"reward": 1.0}, {"text": ["a"]}, {"score": "high"}),  # of another shape
        {chr(97 + index): 40 - index for index in range(26)} | {"n": 9, "c": 3},  # numbers of many tokens, no counts
    ],
)
def test_a_list_without_as_many_responses_is_no_list_of_samples(row: dict[str, Any]) -> None:
    assert samples_of(row) is None


def test_of_several_lists_the_one_with_responses_or_the_named_one_holds_the_samples() -> None:
    row = {"scores": [0.1, 0.9, 0.5], "rewards": [1, 0], "responses": ["a", "b"]}
    assert (shape(row).rewards, shape(row).texts) == ((1, 0), ("a", "b"))
    assert shape({"passed": [True, False]}, "passed").rewards == (True, False)
    assert shape({"rubric": [{"score": 1}, {"score": 0}]}, "score").rewards == (1, 0)


def test_counts_are_read_from_the_named_columns() -> None:
    columns = ColumnNames(num_samples="tries", num_correct="hits")
    samples = samples_of({"tries": 3, "hits": 2, "n": 9, "c": 9}, columns)
    assert isinstance(samples, PromptSamples)
    assert (samples.rewards, samples.counts) == ((1.0, 0.0), (2, 1))
    assert (
        samples_of({"tries": 3, "hits": 4}, columns)
        == "tries and hits are not counts with 0 <= hits <= tries and tries >= 1"
    )
    assert samples_of({"n": 3, "hits": 2}, ColumnNames(num_correct="hits")) == shape({"n": 3, "c": 2})
    assert samples_of({"tries": ["a", "b", "c"], "hits": 2}, columns) == shape({"n": 3, "c": 2})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ["p", "q"], "responses": ["a", "b"], "scores": [1, 0]},
        {"task_id": [1, 2], "passed": [True, False]},
        {"prompt": [[{"role": "user", "content": text}] for text in "pq"], "response": ["a", "b"], "reward": [1, 0]},
    ],
)
def test_a_batch_of_several_prompts_is_no_list_of_samples(row: dict[str, Any]) -> None:
    assert samples_of(row) is None
    assert samples_of(row, ColumnNames(reward=next(name for name in row if name != "prompt"))) is None
    refused("a list of several prompts each", refuse_lone_list, Path("log"), [row])


@pytest.mark.parametrize(
    "prompt", ["p", ["p", "p"], [{"role": "system"}, {"role": "user"}], ["p", "q", "r"], [{"type": "text"}] * 2]
)
def test_the_samples_of_one_prompt_may_repeat_it(prompt: Any) -> None:
    assert shape({"prompt": prompt, "responses": ["a", "b"], "scores": [1, 0]}).rewards == (1, 0)


@pytest.mark.parametrize("name", ["response", "output_response"])
def test_a_list_with_one_response_is_none_of_samples_even_if_it_is_named(name: str) -> None:
    row = {"prompt": "q", name: "a b", "score": [0.0, 1.0]}
    assert samples_of(row) is None
    assert samples_of(row, ColumnNames(reward="score")) == (
        "the list of rewards stands beside one response, whose parts or tokens it then holds"
    )
    assert shape({**row, "responses": ["a", "b"]}, "score").rewards == (0.0, 1.0)


@pytest.mark.parametrize(
    ("row", "lists"),
    [
        ({"sample_0": "a", "sample_0_correct": "True", "sample_1": "b", "sample_1_correct": "False"}, [1.0, 0.0]),
        ({"run1_correct": True, "run2_correct": False, "run3_correct": ""}, [1.0, 0.0, None]),
        ({"correct_run_1": 1, "correct_run_2": 0}, [1.0, 0.0]),
        ({"Run 1": "PASS", "Run 2": "FAIL", "Run 3": "", "Average": "0.5"}, [1.0, 0.0, None]),
    ],
)
def test_numbered_columns_are_the_samples_of_a_prompt(row: dict[str, Any], lists: list[Any]) -> None:
    written, lists_of_samples = with_lists(row)
    assert written["correct"] == lists
    assert "correct" in lists_of_samples


@pytest.mark.parametrize(
    "row", [{"run_1": "C", "run_2": "I"}, {"run1": "no", "run2": "yes"}, {"response_1": "wrong", "response_2": "right"}]
)
def test_numbered_columns_of_what_may_be_answers_are_no_verdicts(row: dict[str, Any]) -> None:
    assert with_lists(row)[0] == {**row, "samples": list(row.values())}


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


@pytest.mark.parametrize("image", ["image", "video_path", "noise"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_lists_for_questions_of_one_text_about_several_images(tmp_path: Path, suffix: str, image: str) -> None:
    rows = [{"question": "How many?", image: f"{index}.png", **LEAF} for index in range(6)]
    log = write_rows(tmp_path / f"a.{suffix}", rows)
    run = assert_same(log)
    assert run is not None
    assert [group.size for group in read_run(log).groups] == ([12] if image == "noise" else [2] * 6)
    assert len(set(reward_table(read_run(log).groups).prompts)) == (1 if image == "noise" else 6)
    wanted = "the text of question" + ("" if image == "noise" else f", {image}")
    assert f"Prompts are told apart by {wanted}." in run.source.inferred


def test_a_table_with_columns_for_several_prompts_a_row_is_refused_and_of_one_prompt_is_read(tmp_path: Path) -> None:
    """As verl writes the samples of each validation for W&B, whose rows once counted as groups."""
    path = tmp_path / "media" / "table" / "val" / "generations_15_f00.table.json"
    path.parent.mkdir(parents=True)
    columns = ["step", *(f"{name}_{i}" for i in range(1, 5) for name in ("input", "output", "score"))]

    def write(prompts: str) -> None:
        cells = ((step, *((f"{prompt}?", f"a{step}", float(step == 5)) for prompt in prompts)) for step in (0, 5))
        data = [[step, *itertools.chain(*samples)] for step, *samples in cells]
        path.write_text(json.dumps({"columns": columns, "data": data}))

    write("abca")
    for target in (path, path.parent):
        hint = refusal(target, "with a list of several prompts each .'inputs', which numbered columns write out")
        assert "Write a row a rollout" in hint
        assert "trainer.rollout_data_dir=DIR" in hint
    write("aaaa")
    assert [[rollout.reward for rollout in group.rollouts] for group in read_run(path).groups] == [[0.0] * 4, [1.0] * 4]


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
    hint = refusal(tmp_path / "wide.csv", message)
    assert hint == f"If each entry is a sample, name the list: --reward-column {name}"
    run = read_run(tmp_path / "wide.csv", naming(reward=name))
    assert [[rollout.reward for rollout in group.rollouts] for group in run.groups] == [[1.0, 1.0], [0.0, 1.0]]


def test_objects_under_numbered_keys_are_samples_of_one_policy(tmp_path: Path) -> None:
    rows = [{"task_id": f"t{i}", **{f"run_{k}": {"output": "x", "correct": k > i} for k in range(3)}} for i in range(2)]
    run = read_run(write_rows(tmp_path / "runs.json", rows))
    assert [len(group.rollouts) for group in run.groups] == [3, 3]
    assert {rollout.policy for group in run.groups for rollout in group.rollouts} <= {None, ""}
