from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import UsageError
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.column_roles import resolve_columns, reward_columns, sample_column, summed_columns
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.generic import num_prompt_turns
from gradscope.rollouts.readers.parsing.cells import before_answer
from gradscope.rollouts.readers.parsing.records import NUM_SEARCHED
from tests.rollouts.readers.lines import naming, refusal, write_rows
from tests.rollouts.readers.lines import write_lines as write


def test_the_most_telling_usual_name_has_the_role() -> None:
    columns = resolve_columns(["score", "reward", "uid", "group_id", "iteration", "input"], ColumnNames())
    assert columns == ColumnNames(prompt="input", reward="reward", step="iteration", group="group_id")


def test_a_verdict_goes_before_an_accuracy_which_may_be_a_running_one() -> None:
    assert resolve_columns(["acc", "is_solved"], ColumnNames()).reward == "is_solved"


def test_a_given_name_wins_and_must_be_there() -> None:
    assert resolve_columns(["reward", "grade"], ColumnNames(reward="grade")).reward == "grade"
    with pytest.raises(UsageError, match="There is no column 'mark' to take as prompt id") as caught:
        resolve_columns(["reward"], ColumnNames(prompt_id="mark"))
    assert caught.value.hint == "The columns are 'reward'."


def test_who_names_the_prompt_means_to_tell_prompts_apart_by_it() -> None:
    present = ["prompt", "task_id", "uid", "reward"]
    by_prompt = resolve_columns(present, ColumnNames(prompt="prompt"))
    assert (by_prompt.group, by_prompt.prompt_id, by_prompt.prompt) == (None, None, "prompt")
    by_id = resolve_columns(present, ColumnNames(prompt_id="task_id"))
    assert (by_id.group, by_id.prompt_id) == (None, "task_id")


def test_rewards_are_known_by_prefix_suffix_or_usual_name() -> None:
    present = ["mine", "reward/format", "rewards/x", "reward_y", "z_reward", "accuracy", "rewarding", "step"]
    assert reward_columns(present, "mine") == ("mine", "reward/format", "rewards/x", "reward_y", "z_reward", "accuracy")


def test_ids_tell_samples_apart_if_more_than_half_of_them_differ() -> None:
    columns = ColumnNames(step="step", group="uid")
    rows = [{"step": 1, "uid": "a", "sample_id": number} for number in (0, 1, 2, 2)]
    assert sample_column(rows, columns) == "sample_id"
    assert sample_column(rows[2:], columns) is None
    assert sample_column([{"step": 1, "uid": "a", "sample_id": None}], columns) is None
    # The same id at another step is another sample.
    repeated = [{"step": step, "uid": "a", "rollout_idx": 0} for step in (1, 2, 3)]
    assert sample_column(repeated, columns) == "rollout_idx"


def rows_of(**columns: list[object]) -> list[dict[str, object]]:
    names = list(columns)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def test_columns_that_add_up_to_the_reward_are_its_functions() -> None:
    correct, length = [1, 0, 1, 1] * 8, [5 + 3 * n % 17 for n in range(32)]
    names = ColumnNames(reward="reward", group="g")
    total = [c - 0.01 * n for c, n in zip(correct, length, strict=True)]
    group = [n // 4 for n in range(32)]
    rows = rows_of(g=group, reward=total, correct=correct, length=length, index=list(range(32)))
    assert summed_columns(rows, names, ["correct", "length", "index"]) == {"correct": 1.0, "length": -0.01}
    text = rows_of(g=group, reward=list(map(str, total)), correct=["true", "false"] * 16, length=list(map(str, length)))
    assert summed_columns(text, names, ["correct", "length"]) == {}


def test_many_functions_add_up_with_equal_weights() -> None:
    cells = {f"f{index}_reward": [pow(index + 2, row, 29) / 4 for row in range(32)] for index in range(1, 13)}
    rows = rows_of(g=[row // 4 for row in range(32)], reward=list(map(sum, zip(*cells.values(), strict=True))), **cells)
    assert summed_columns(rows, ColumnNames(reward="reward", group="g"), list(cells)) == dict.fromkeys(cells, 1.0)


def test_the_mean_of_the_group_and_what_is_above_it_are_no_functions() -> None:
    rewards = [float(n * n % 7) for n in range(32)]
    means = [sum(rewards[n // 4 * 4 : n // 4 * 4 + 4]) / 4 for n in range(32)]
    above = [reward - mean for reward, mean in zip(rewards, means, strict=True)]
    rows = rows_of(g=[n // 4 for n in range(32)], reward=rewards, mean=means, above=above)
    assert summed_columns(rows, ColumnNames(reward="reward", group="g"), ["mean", "above"]) == {}


@pytest.mark.parametrize(
    ("name", "is_reward"),
    [
        *((f"{name}.score", True) for name in ("info", "extra_info", "result", "evaluation", "Judgment", "metadata")),
        *((f"{name}.score", False) for name in ("bucket", "difficulty", "level", "source", "problem", "prompt_tier")),
        *(("bucket.reward", True), ("task.total_reward", True), ("reward_fn.score", True), ("level.accuracy", False)),
    ],
)
def test_a_score_counts_in_an_object_that_is_of_the_response(name: str, is_reward: bool) -> None:
    assert resolve_columns(("prompt", name), ColumnNames()).reward == (name if is_reward else None)
    assert resolve_columns(("prompt", name), ColumnNames(reward=name)).reward == name


@pytest.mark.parametrize(
    ("present", "reward"),
    [
        (["Task ID", "Success", "Action F1"], "Success"),
        (["taskId", "totalReward", "reward"], "reward"),
        (["task_id", "verifier_reward", "length"], "verifier_reward"),
        (["task_id", "mean_reward", "reward/format"], None),
        (["task_id", "format_reward", "answer_reward"], None),
        *((["task_id", f"{name}_reward"], None) for name in ("peak", "last10", "first_5", "best")),  # of a run
        (["task_id", "success", "latency_ms", "error"], "success"),
        (["task_id", "success", "retry_count"], None),  # of a call
        (["task_id", "result.success", "result.request_time", "result.cached"], None),
        (["task_id", "result.success", "request_id"], "result.success"),
    ],
)
def test_names_are_spelled_in_other_ways_and_a_reward_alone_is_one(present: list[str], reward: str | None) -> None:
    columns = resolve_columns(present, ColumnNames())
    assert (columns.reward, columns.prompt_id) == (reward, present[0])


@pytest.mark.parametrize(
    ("present", "prompt_id"),
    [
        (("task", "trial", "model", "solved"), "task"),
        (("task_name", "attempt", "success"), "task_name"),
        (("task", "id", "trial", "passed"), "id"),
        (("task", "passed"), None),
        (("task", "trial", "accuracy"), None),
    ],
)
def test_tasks_of_numbered_trials_are_prompts(present: tuple[str, ...], prompt_id: str | None) -> None:
    assert resolve_columns(present, ColumnNames()).prompt_id == prompt_id


def test_ids_of_rows_tell_prompts_apart_where_nothing_else_does_and_no_step_is_named() -> None:
    assert resolve_columns(["id", "correct"], ColumnNames()).prompt_id == "id"
    assert resolve_columns(["id", "correct", "question"], ColumnNames()).prompt_id is None
    assert resolve_columns(["id", "correct", "step"], ColumnNames()).prompt_id is None


@pytest.mark.parametrize("setting", ["condition", "phase"])
def test_settings_of_an_evaluation_are_policies(setting: str, tmp_path: Path) -> None:
    rows = [
        {"task_id": task, setting: arm, "sample_idx": sample, "passed": arm == 0.5}
        for arm in (0.0, 0.5)
        for task in range(150)
        for sample in (0, 1)
    ]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert (len(run.groups), {group.rewards for group in run.groups}) == (300, {(0.0, 0.0), (1.0, 1.0)})
    assert reward_table(run.groups).policies == ("0.0", "0.5")
    assert [rollout.policy for group in run.groups for rollout in group.rollouts] == ["0.0"] * 300 + ["0.5"] * 300
    for row in rows:
        del row["sample_idx"]
    by_task = [row | {setting: row["task_id"] % 3} for row in rows]  # an attribute of the prompt
    for other in (by_task, [row | {"step": 1} for row in rows]):
        assert {group.size for group in read_run(write(tmp_path / "b.jsonl", *other)).groups} == {4}


SETTINGS: dict[str, tuple[float, ...]] = {"alpha": (-1.0, 0.0, 0.5), "max_tokens": (512, 2048), "k": (1, 2, 4)}
SAMPLE_NUMBERS: dict[str, tuple[float, ...]] = {
    **{
        "attempt_no": (1, 2, 3),
        "sample": (5, 6, 7),
        "repeat": (0, 1),
        "rng_seed": (42, 7),
        "node_id": (3, 8),
        "is_chosen": (True, False),
    },
    "format": (0.5, 0.0, 0.5),  # not equally often
}


@pytest.mark.parametrize("name", [*SETTINGS, *SAMPLE_NUMBERS])
def test_numbers_that_every_prompt_has_and_that_count_nothing_are_settings(name: str, tmp_path: Path) -> None:
    numbers = (SETTINGS | SAMPLE_NUMBERS)[name]
    rows = [{"task_id": task, name: number, "passed": True} for number in numbers for task in range(9)]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert {group.size for group in run.groups} == {1 if name in SETTINGS else len(numbers)}
    run = read_run(write(tmp_path / "b.jsonl", *rows[:-1], {**rows[-1], name: 99.5}))
    assert max(group.size for group in run.groups) == len(numbers)


@pytest.mark.parametrize(
    ("name", "words", "num_each", "is_condition"),
    [
        *((name, ("en", "de"), 4, True) for name in ("lang", "prompt_template", "level")),
        ("with_hint", (True, False), 2, True),
        ("lang", ("en", "de"), 1, False),  # one sample each may be told apart by any word
        ("hostname", ("en", "de"), 2, True),
        ("gpu", ("a", "b"), 2, False),
        ("label", ("good", "bad"), 2, False),  # the verdict in words
        ("format", ("0", "1"), 2, False),  # numbers of CSV
    ],
)
def test_words_that_divide_the_samples_of_all_prompts_alike_are_settings(
    name: str, words: tuple[Any, ...], num_each: int, is_condition: bool, tmp_path: Path
) -> None:
    rows = [
        {"id": task, name: word, "correct": word == "good" if name == "label" else (task + index) % 2}
        for word in words
        for task in range(10)
        for index in range(num_each)
    ]
    for arms, num in ((rows, is_condition), (rows[:-1], False), ([row for row in rows if row["id"] < 9], False)):
        sizes = {group.size for group in read_run(write(tmp_path / "a.jsonl", *arms)).groups}
        assert max(sizes) == (num_each if num else 2 * num_each)


@pytest.mark.parametrize("name", ["lang", "model"])
def test_words_also_divide_rows_with_counts(name: str, tmp_path: Path) -> None:
    rows = [{name: word, "id": task, "n": 4, "c": task % 4} for word in ("en", "de") for task in range(10)]
    table = reward_table(read_run(write(tmp_path / "a.jsonl", *rows)).groups)
    assert (set(table.size.tolist()), table.policies) == ({4}, ("en", "de"))
    uneven = [row | {"n": 8 if row[name] == "de" else 4} for row in rows]
    if name == "model":
        assert len(read_run(write(tmp_path / "b.jsonl", *uneven)).groups) == 20


@pytest.mark.parametrize(
    ("name", "key", "num"),
    [("prompt", "question", 10), ("prompt", "problem", 4), ("prompt", "task_id", 4), ("instruction", "task_id", 4)],
)
def test_templates_of_the_same_questions_are_policies(name: str, key: str, num: int, tmp_path: Path) -> None:
    rows = [
        {name: word, key: f"{i}?", "sample": sample, "correct": (i + sample) % 2}
        for word in ("cot", "none")
        for i in range(num)
        for sample in (5, 6, 7)
    ]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert (len(run.groups), reward_table(run.groups).policies) == (2 * num, ("cot", "none"))
    own = [row | {name: f"{row[name]} {index} {row[key]}"} for index, row in enumerate(rows)]  # with drawn examples
    if key == "task_id":
        assert {group.size for group in read_run(write(tmp_path / "b.jsonl", *own)).groups} == {6}


def test_metrics_beside_the_parameters_of_a_sample_are_its_own(tmp_path: Path) -> None:
    rows = [{"task_id": index, "params": {"top_p": 1}, "metrics": {"correct": index % 2}} for index in range(4)]
    assert [group.rewards for group in read_run(write(tmp_path / "a.jsonl", *rows)).groups] == [(0,), (1,), (0,), (1,)]


def test_what_each_policy_took_sets_nothing_more_apart(tmp_path: Path) -> None:
    took = {"zero": 41.5, "few": 86.25}
    rows = [{"model": m, "seconds": took[m], "task_id": index, "passed": True} for m in took for index in range(9)]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert reward_table(run.groups).policies == ("zero", "few")


def test_settings_that_change_below_the_rows_that_are_searched_are_policies_as_well(tmp_path: Path) -> None:
    rows = [{"task_id": index, "condition": arm, "passed": arm == "b"} for arm in "ab" for index in range(NUM_SEARCHED)]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert {(group.rollouts[0].policy, group.rewards) for group in run.groups} == {("a", (0.0,)), ("b", (1.0,))}
    for arm in "ab":
        write(tmp_path / "files" / f"part-{ord(arm)}.jsonl", *(row for row in rows[::500] if row["condition"] == arm))
    assert {group.size for group in read_run(tmp_path / "files").groups} == {1}
    by_subset = [{"subset" if name == "condition" else name: cell for name, cell in row.items()} for row in rows]
    assert {group.size for group in read_run(write(tmp_path / "b.jsonl", *by_subset)).groups} == {1}


def test_settings_that_never_change_name_neither_policies_nor_prompts(tmp_path: Path) -> None:
    rows = [{"task_id": index, "condition": "a", "subset": "s", "passed": True} for index in range(NUM_SEARCHED + 1)]
    table = reward_table(read_run(write(tmp_path / "a.jsonl", *rows), rewards_only=True).groups)
    assert (table.prompts[1], table.policies, table.policy) == ("1", (), None)
    lists = [{"idx": index, "checkpoint": "a", "subset": "s", "n": 2, "c": 1} for index in range(NUM_SEARCHED + 1)]
    table = reward_table(read_run(write(tmp_path / "b.jsonl", *lists), rewards_only=True).groups)
    assert (table.prompts[1], table.policies, table.policy) == ("1", (), None)


@pytest.mark.parametrize(
    ("name", "question", "num_prompts"),
    [
        ("question", lambda seed, i: f"What is {seed} + {i}?", 12),
        ("problem", lambda seed, i: f"{i} and {seed // 2} are how many?", 8),
        ("question", lambda seed, i: f"Which of these is the number {i} in words, as in a book? {seed} {3 - seed}", 4),
        ("prompt", lambda seed, i: f"{seed} is an example. What is {i}?", 4),
        ("question", lambda seed, i: f"{i}?", 4),
    ],
)
def test_ids_under_which_questions_differ_are_those_of_no_prompt(
    name: str, question: Callable[[int, int], str], num_prompts: int, tmp_path: Path
) -> None:
    rows = [
        {"seed": seed, "condition": arm, "example_id": i, name: question(seed, i), "correct": arm == "b"}
        for seed in range(3)
        for arm in "ab"
        for i in range(4)
    ]
    log = write(tmp_path / "a.jsonl", *rows)
    run = read_run(log)
    assert len({group.prompt_id for group in run.groups}) == num_prompts
    assert {group.rewards for group in run.groups} == {(c,) * group.size for group in run.groups for c in (0, 1)}
    assert (num_prompts > 4) == any("Under most ids in 'example_id'" in text for text in run.source.inferred)
    assert len(read_run(log, naming(prompt_id="example_id")).groups) == 8


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("dataset", {"step": 3}),
        *((name, {}) for name in ("dataset", "env", "agent", "benchmark", "task", "domain", "split")),
    ],
)
def test_ids_count_within_the_benchmark_or_agent_of_a_row(name: str, extra: dict[str, Any], tmp_path: Path) -> None:
    rows = [
        {name: label, "problem_id": problem, "passed": sample % 2, "response": f"{label}{problem}{sample}"} | extra
        for label in ("aime", "math")
        for problem in range(2 if label == "aime" else 5)
        for sample in range(3)
    ]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert [(group.prompt_id, group.size) for group in run.groups] == [
        *((f"aime/{problem}", 3) for problem in range(2)),
        *((f"math/{problem}", 3) for problem in range(5)),
    ]
    assert f"Rows of one group have the same {name!r}." in run.source.inferred
    one_agent = [row | {"agent": "of all"} for row in rows] if name > "agent" else rows
    assert [group.prompt_id for group in read_run(write(tmp_path / "b.jsonl", *one_agent)).groups] == [
        group.prompt_id for group in run.groups
    ]
    one_text = [row | {"prompt": f"p{row['problem_id']}"} for row in rows]
    two_texts = [row | {"prompt": f"p{row['problem_id']} of {row[name]}"} for row in rows]
    for texts, num in ((one_text, 5), (two_texts, 7)):
        assert len(read_run(write(tmp_path / "b.jsonl", *texts)).groups) == num
    assert len(read_run(tmp_path / "b.jsonl", naming(group="problem_id")).groups) == 5


@pytest.mark.parametrize(
    ("answers", "num_groups"),
    [
        ({"answer": "abc"}, 3),
        ({"info": [{"seed": 5}, {"seed": 6}, {"seed": 7}]}, 3),
        ({"ground_truth": "abc", "completion": ["x"]}, 3),
        ({"puzzle": [{"ground_truth": text} for text in "abc"], "completion": ["x"]}, 3),
        ({"answer": "aaa"}, 1),
        ({"answer": "abc", "completion": ["x"]}, 1),  # of the response
        ({"info": [{"turns": turns} for turns in range(6)]}, 1),
        ({"answer": "abc", "example_id": [0]}, 1),
    ],
)
def test_games_that_begin_alike_are_told_apart_by_what_is_right(
    answers: dict[str, Any], num_groups: int, tmp_path: Path
) -> None:
    completion = [{"role": "assistant", "content": "x"}]
    rows = [
        {"prompt": [{"role": "user", "content": "guess"}], "completion": completion, "reward": index / 6}
        | {name: cells[index % len(cells)] for name, cells in answers.items()}
        for index in range(6)
    ]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert [group.size for group in run.groups] == [6 // num_groups] * num_groups
    assert len({group.prompt_id for group in run.groups}) == num_groups


@pytest.mark.parametrize(
    ("images", "num_groups"),
    [
        ({"p": "aabb", "q": "bbcc"}, 4),  # one of which both are asked
        ({"p": "aabb", "q": "ccdd"}, 4),  # which several rows are about
        ({"p": "abcd", "q": "abcd"}, 2),  # sample_0.png and others of each, say
    ],
)
def test_the_same_question_about_several_images_is_as_many_prompts(
    images: dict[str, str], num_groups: int, tmp_path: Path
) -> None:
    rows = [
        {"question": prompt, "image_path": image, "correct": image == "a"}
        for prompt, names in images.items()
        for image in names
    ]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert [group.size for group in run.groups] == [8 // num_groups] * num_groups


@pytest.mark.slow
def test_runs_in_one_log_have_groups_of_their_own(tmp_path: Path) -> None:
    pairs = [("a", step) for step in range(400)] + [("b", step) for step in range(400)]  # the second beyond first rows
    rows = [{"step": step, "prompt": "p", "reward": index % 2, "of": run} for run, step in pairs for index in range(3)]
    for name, size in {"method": 3, "run_id": 3, "temperature": 6}.items():
        log = write(tmp_path / "a.jsonl", *(row | {name: row["of"]} for row in rows))
        table = reward_table(read_run(log).groups)
        assert set(table.size.tolist()) == {size}
        assert table.policies == (("a", "b") if size == 3 else ())
    numbered = [row | {"run": index % 3} for index, row in enumerate(rows[:1200])]  # its samples
    assert {group.size for group in read_run(write(tmp_path / "b.jsonl", *numbered)).groups} == {3}


@pytest.mark.parametrize(
    ("layout", "name", "numbers", "num_steps"),
    [
        *(("rows", name, (0, 1, 4), 3) for name in ("iter", "policy_version", "epoch", "round", "episode")),
        *(("rows", "iter", (0, "last", 1), 1), ("rows", "iter", (2, 2, 2), 1), ("rows", "batch", (0, 1, 4), 1)),
        *(("lists", "iter", (0, 1, 0), 1), ("lists", "iter", (0, "last", 1), 1), ("document", "iter", (0, 1, 4), 3)),
        *(("document", "episode", (0, 1, 4), 3), ("document", "iter", (0, 1, 0), 1)),
    ],
)
def test_a_number_of_iterations_counts_as_the_step_where_it_never_falls(
    layout: str, name: str, numbers: tuple[int | str, ...], num_steps: int, tmp_path: Path
) -> None:
    samples = [{"prompt": prompt, "response": str(i), "reward": i % 2} for prompt in "pq" for i in (0, 1)]
    lists = [{"prompt": prompt, "responses": ["a", "b"], "rewards": [0, 1]} for prompt in "pq"]
    if layout == "document":
        path = write_rows(tmp_path / "a.json", {"log": [{name: number, "rollouts": samples} for number in numbers]})
    else:
        rows = samples if layout == "rows" else lists
        path = write(tmp_path / "a.jsonl", *({name: number, **row} for number in numbers for row in rows))
    run = read_run(path)
    assert [group.rewards for group in run.groups] == [(0.0, 1.0) * (3 // num_steps)] * 2 * num_steps
    assert any(repr(name) in sentence for sentence in run.source.inferred) == (num_steps == 3)


def test_epochs_that_number_the_samples_of_a_prompt_are_no_steps(tmp_path: Path) -> None:
    rows = [{"task_id": prompt, "epoch": epoch, "reward": epoch % 2} for epoch in (1, 2) for prompt in "pqr"]
    assert {group.size for group in read_run(write(tmp_path / "a.jsonl", *rows)).groups} == {2}


@pytest.mark.parametrize(
    ("cells", "are_parts"),
    [
        *(({name: "e-{episode}", "turn": "{turn}"}, True) for name in ("episode_id", "trajectory_id")),
        ({"episode_id": "e-{episode}", "env_time": "{turn}", "step": "1"}, True),
        ({"episode_id": "e-{episode}", "turn": "4"}, False),
        ({"episode_id": "e-{episode}-{turn}", "turn": "{turn}"}, False),
        ({"trajectory_id": "{turn}", "step_id": "{turn}"}, False),
        ({"rollout_id": "e-{episode}", "turn": "{turn}"}, False),  # slime's number of a step
        ({"episode_id": "e-{episode}"}, False),
    ],
)
def test_parts_of_rollouts_are_no_rollouts(cells: dict[str, str], are_parts: bool, tmp_path: Path) -> None:
    rows = [
        {"task_id": episode % 2, "reward": turn}
        | {name: cell.format(episode=episode, turn=turn) for name, cell in cells.items()}
        for episode in range(4)
        for turn in range(3)
    ]
    path = write(tmp_path / "a.jsonl", *rows)
    if are_parts:
        refusal(path, r"has a row for each step of an episode\.")
    named = ReadOptions(columns=ColumnNames(reward="reward") if are_parts else ColumnNames())
    assert len(read_run(path, named).groups) == 2


def conversation(*turns: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, _, text in (turn.partition(":") for turn in turns)]


@pytest.mark.parametrize(
    ("examples", "is_episode", "num_turns"),
    [
        ((), True, 0),
        (("user:1+1?", "assistant:2"), True, 1),
        (("user:1+1?", "assistant:2"), False, None),
        ((), False, None),
    ],
)
def test_a_prompt_ends_where_its_conversations_part(
    examples: tuple[str, ...], is_episode: bool, num_turns: int | None
) -> None:
    conversations = [
        conversation(
            *(*examples, f"user:question {prompt}"),
            *((f"assistant:call {index}", f"tool:result {index}") if is_episode and index else ()),
            f"assistant:answer {index}",
        )
        for prompt in range(3)
        for index in range(4)
    ]
    assert num_prompt_turns([*conversations, "text", None]) == num_turns
    prompts = {str(before_answer(name, num_turns)) for name in conversations}
    assert prompts == {str(conversation(*examples, f"user:question {prompt}")) for prompt in range(3)}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_turns_of_an_agent_are_its_rollout_and_no_part_of_the_prompt(suffix: str, tmp_path: Path) -> None:
    rows = []
    for index in range(24):
        calls = [f"{role}:{role} {index} {turn}" for turn in range(index % 3) for role in ("assistant", "tool")]
        messages = conversation(f"user:question {index // 4}", *calls, f"assistant:answer {index}")
        rows.append({"step": index // 12, "messages": messages, "reward": index % 2})
    run = read_run(write_rows(tmp_path / f"log.{suffix}", rows))
    assert [(group.step, group.size) for group in run.groups] == [(0, 4)] * 3 + [(1, 4)] * 3
    assert run.groups[0].rollouts[1].prompt == "question 0"
    assert run.groups[0].rollouts[1].completion == "assistant 1 0\ntool 1 0\nanswer 1"
