import pytest

from gradscope.errors import UsageError
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.column_roles import resolve_columns, reward_columns, sample_column, summed_columns


def test_the_most_telling_usual_name_has_the_role() -> None:
    columns = resolve_columns(["score", "reward", "uid", "group_id", "iteration", "input"], ColumnNames())
    assert columns == ColumnNames(prompt="input", reward="reward", step="iteration", group="group_id")


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
    again = [{"step": step, "uid": "a", "rollout_idx": 0} for step in (1, 2, 3)]
    assert sample_column(again, columns) == "rollout_idx"


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
    cells = {f"f{at}_reward": [pow(at + 2, row, 29) / 4 for row in range(32)] for at in range(1, 13)}
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
        *((f"{of}.score", True) for of in ("info", "extra_info", "result", "evaluation", "Judgment", "metadata")),
        *((f"{of}.score", False) for of in ("bucket", "difficulty", "level", "source", "problem", "prompt_tier")),
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
        *((["task_id", f"{of}_reward"], None) for of in ("peak", "last10", "first_5", "best")),  # of a run
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
