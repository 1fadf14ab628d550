import json
import math
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import nested
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.nested import NUM_LISTED, Level, layout_of, rows_within, title_of
from tests.rollouts.readers.lines import naming, refusal, write_lines, write_rows
from tests.rollouts.readers.reduced import answers, assert_reduced

REWARDS = {(step, prompt): (float(step > 1), float(prompt == "p")) for step in (1, 2) for prompt in "pq"}
"""(Step, prompt) -> the rewards of its two samples."""


def rollouts(step: int, prompt: str) -> list[dict[str, Any]]:
    return [{"response": f"{prompt}{reward}", "reward": reward} for reward in REWARDS[step, prompt]]


def flat(step: int) -> list[dict[str, Any]]:
    return [row | {"prompt": prompt} for prompt in "pq" for row in rollouts(step, prompt)]


def batch(step: int, **cells: Any) -> dict[str, Any]:
    columns = {"prompts": ["p", "q"], "rewards": [list(REWARDS[step, prompt]) for prompt in "pq"]}
    return {"step": step, "loss": 0.5} | columns | cells


STEPS = [{"step": step, "loss": 0.5, "reward": 9.0, "rollouts": flat(step)} for step in (1, 2)]
GROUPED = [
    {"step": step, "groups": [{"prompt": prompt, "samples": rollouts(step, prompt)} for prompt in "pq"]}
    for step in (1, 2)
]
TEXTS = {"responses": [["a", "b"], ["c", "d"]]}
MESSAGES = [[{"role": "user", "content": prompt}] for prompt in "pq"]


@pytest.mark.parametrize(
    "document",
    [
        {"steps": STEPS},
        STEPS,
        {"config": {"lr": 1.0}, "history": STEPS},
        {"steps": GROUPED},
        {str(step): flat(step) for step in (1, 2)},
        {f"step_{step}": flat(step) for step in (1, 2)},
        {"rollouts_by_step": {f"step_{step}": flat(step) for step in (1, 2)}},
        {f"step_{step}": {"mean": 0.5, "rollouts": flat(step)} for step in (1, 2)},
        [batch(1), batch(2)],
        {"log": [batch(1, **TEXTS), batch(2, **TEXTS)]},
        [{"step": step} | {f"{name}s": [row[name] for row in flat(step)] for name in flat(1)[0]} for step in (1, 2)],
        [{"step": step} | {name: [row[name] for row in flat(step)] for name in flat(1)[0]} for step in (1, 2)],
        [batch(step, prompts=MESSAGES) for step in (1, 2)],
    ],
)
def test_rollouts_lie_within_steps(tmp_path: Path, document: Any) -> None:
    (tmp_path / "log.json").write_text(json.dumps(document))
    lines = map(json.dumps, document if isinstance(document, list) else [])
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    for name in ("log.json", "log.jsonl")[: 1 + isinstance(document, list)]:
        for rewards_only in (False, True):
            run = read_run(tmp_path / name, rewards_only=rewards_only)
            assert [(group.step, group.rewards) for group in run.groups] == [
                (step, rewards) for (step, _), rewards in REWARDS.items()
            ]
            assert len({group.prompt_id for group in run.groups}) == 2


@pytest.mark.parametrize("name", ["prompt", "group_id"])
def test_a_line_is_a_list_of_rollouts(tmp_path: Path, name: str) -> None:
    """As PipelineRL writes a group a line, and scripts a batch."""
    rows = {prompt: [{name: prompt} | row for row in rollouts(1, prompt)] for prompt in "pq"}
    lines = ([*rows.values()], [[*rows["p"], *rows["q"]]])
    for file, groups in zip(("log.jsonl", "log.json"), lines, strict=True):
        (tmp_path / file).write_text("".join(json.dumps(group) + "\n" for group in groups))
        run = read_run(tmp_path / file)
        assert [group.rewards for group in run.groups] == [REWARDS[1, "p"], REWARDS[1, "q"]]


EPISODES = [
    [{"obs": obs, "action": f"{obs}{n}", "prompt": obs, "reward": float(n), "done": int(n)} for n in range(2)]
    for obs in "pq"
    for _ in range(2)
]


@pytest.mark.parametrize("key", ["done", "terminated", "turn"])
@pytest.mark.parametrize("lines", [[dict(zip("abcd", EPISODES, strict=True))], EPISODES])
def test_turns_in_lists_of_any_name_are_refused(tmp_path: Path, lines: list[Any], key: str) -> None:
    """As gem's trainers write an episode under a key each."""
    text = "".join(json.dumps(line) + "\n" for line in lines).replace('"done"', f'"{key}"')
    for name in ("log.jsonl", "log.json"):
        (tmp_path / name).write_text(text)
        refusal(tmp_path / name, "has a row for each step of an episode")


@pytest.mark.parametrize("has_question", [False, True])
def test_lists_by_key_are_benchmarks_or_policies_with_the_same_prompts(tmp_path: Path, has_question: bool) -> None:
    def rows(name: str, num: int) -> list[dict[str, Any]]:
        ids = {"id": 0} if not has_question else {"question": "one"}
        return [ids | {"response": f"{name}{index}", "correct": index == 0} for index in range(num)]

    lists = {"a": rows("a", 2), "b": rows("b", 3)}
    run = read_run(write_rows(tmp_path / "log.json", {"accuracy": 0.5, "results": lists}))
    inner = {name: {"accuracy": 0.5, "samples": listed} for name, listed in lists.items()}
    within = read_run(write_rows(tmp_path / "within.json", {"results": inner}))
    for read in (run, within):
        assert [group.rewards for group in read.groups] == [(1.0, 0.0), (1.0, 0.0, 0.0)]
    assert {rollout.policy for group in run.groups for rollout in group.rollouts} == (
        {"a", "b"} if has_question else {None}
    )
    assert len({group.prompt_id for group in run.groups}) == 2 - has_question


SAMPLES = [[{"completion": f"{i}", "passed": i == right} for i in range(3)] for right in range(4)]


@pytest.mark.parametrize(
    ("keys", "cells", "is_read"),
    [
        ("HumanEval/{}", {}, True),
        ("problem_{}", {}, True),
        ("357e1f4{}a3e25", {}, True),
        ("any {} words", {"question": "q{}"}, True),
        ("any {} words", {}, False),  # perhaps benchmarks
        ("{}", {}, False),  # perhaps steps
        ("problem_{}", {"turn": 0}, False),
    ],
)
def test_samples_of_a_prompt_are_under_its_key(tmp_path: Path, keys: str, cells: dict[str, Any], is_read: bool) -> None:
    def listed(i: int) -> list[dict[str, Any]]:
        named = {name: cell.format(i) if isinstance(cell, str) else cell for name, cell in cells.items()}
        return [row | named for row in SAMPLES[i]]

    path = write_rows(tmp_path / "log.json", {keys.format(i): listed(i) for i in range(len(SAMPLES))})
    if not is_read:
        with pytest.raises(InputError):
            read_run(path)
        return
    expected = [tuple(float(row["passed"]) for row in rows) for rows in SAMPLES]
    for rewards_only in (False, True):
        assert [group.rewards for group in read_run(path, rewards_only=rewards_only).groups] == expected


def test_a_document_of_thousands_of_keys_takes_no_minutes(tmp_path: Path) -> None:
    by_key = {f"a {i}": {"question": f"q{i}", "solutions": ["x", "y"], "passed": [True, False]} for i in range(4000)}
    run = read_run(write_rows(tmp_path / "log.json", by_key), rewards_only=True)
    assert len(run.groups) == 4000
    assert {group.rewards for group in run.groups} == {(1.0, 0.0)}


PROMPTS = {"base": range(8), "step_50": range(4), "grpo": range(2, 10)}
"""Policy -> the numbers of its prompts."""
ROWS = {m: [{"question": f"q{i}", "by": m, "em": i % 2} for i in prompts] for m, prompts in PROMPTS.items()}
COUNTS = {m: [{"question": f"q{i}", "n": 2, "c": int(m[i % 3] > "e")} for i in range(8)] for m in PROMPTS}


@pytest.mark.parametrize(
    "document",
    [
        {"trajectories": ROWS},
        {m: rows + ROWS["base"][len(rows) :] for m, rows in ROWS.items() if m != "step_50"},
        {"models": [{"name": m, "results": rows} for m, rows in ROWS.items()]},
        {"results": {m: [{"task_id": r["question"], "by": m, "passed": r["em"]} for r in ROWS[m]] for m in ROWS}},
        {"results": {m: [{"id": i, "answer": m, "passed": i % 2} for i in range(9)] for m in PROMPTS}},
        {"results": {m: [{"prompt": MESSAGES, "n": 2, "c": i}] for i, m in enumerate(PROMPTS)}},
        COUNTS,
        {"seed": 0, "config": {"n": 2}} | COUNTS,
        {"results": [{"name": m, "problems": rows} for m, rows in COUNTS.items()]},
    ],
)
def test_lists_of_the_same_prompts_are_those_of_policies(tmp_path: Path, document: dict[str, Any]) -> None:
    run = read_run(write_rows(tmp_path / "log.json", document))
    assert {rollout.policy for group in run.groups for rollout in group.rollouts}.issubset(PROMPTS)
    assert len({(group.prompt_id, group.rollouts[0].policy) for group in run.groups}) == len(run.groups)
    assert len({group.size for group in run.groups}) == 1


@pytest.mark.parametrize(
    ("keys", "are_policies"),
    [
        (("temperature_0.0", "temperature_1.0"), True),
        (("zero_shot", "cot"), True),
        (("run_1", "run_2"), True),
        (("aime24", "aime25"), False),
    ],
)
def test_keys_that_say_so_are_policies_of_prompts_with_the_same_numbers(
    keys: tuple[str, ...], are_policies: bool, tmp_path: Path
) -> None:
    name = "id" if are_policies else "idx"
    document = {key: [{name: i, "correct": i % (2 + place)} for i in range(9)] for place, key in enumerate(keys)}
    groups = read_run(write_rows(tmp_path / "log.json", document)).groups
    policies = {group.rollouts[0].policy for group in groups}
    assert (policies == set(keys), len({group.prompt_id for group in groups})) == (
        are_policies,
        9 + 9 * (not are_policies),
    )


def test_what_is_the_same_throughout_a_long_list_tells_policies_apart(tmp_path: Path) -> None:
    lists = [{"checkpoint": c, "cases": [{"idx": i, "correct": c} for i in range(NUM_LISTED + 9)]} for c in (0, 1)]
    run = read_run(write_rows(tmp_path / "a.json", {"results": lists}))
    assert {group.rewards for group in run.groups} == {(0.0,), (1.0,)}


@pytest.mark.parametrize("key", ["results", "lists"])
def test_the_failures_among_all_are_no_policy(tmp_path: Path, key: str) -> None:
    lists = {"all": COUNTS["base"], "failed": [row for row in COUNTS["base"] if row["c"] == 0]}
    path = write_rows(tmp_path / "log.json", {key: lists} if key == "results" else lists)
    assert [group.size for group in read_run(path).groups] == [2] * 8


@pytest.mark.parametrize(
    "rows",
    [
        [{"task_id": i, "turns": [{"response": "a", "reward": 0.0}, {"response": "b", "reward": 1.0}]} for i in "ab"],
        [{"task_id": i, "rubric": [{"name": "format", "score": 0.0}, {"name": "tone", "score": 1.0}]} for i in "ab"],
        [{"id": i, "trace": [{"step": step, "prompt": str(step), "reward": 0.0} for step in range(4)]} for i in "ab"],
        [{"id": i, "trace": [{"prompt": f"{i}{turn}", "output": "x", "reward": 0} for turn in "12"]} for i in "ab"],
        [{"step": step, "train": flat(step), "eval": flat(step)} for step in (1, 2)],
        [{"step": step, "losses": [{"value": 0.5}]} for step in (1, 2)],
        [{"step": step, "loss": 0.5, "examples": [{"prompt": i, "reward": 1.0} for i in "ab"]} for step in (1, 2)],
    ],
)
def test_parts_of_a_rollout_and_lists_of_two_kinds_are_none(rows: list[dict[str, Any]]) -> None:
    assert layout_of(rows, ColumnNames()) is None


@pytest.mark.parametrize("name", ["completion_ids", "response_ids", "completion_token_ids"])
@pytest.mark.parametrize("by", ["prompt", "step"])
def test_lists_of_ids_of_several_completions_are_rollouts_as_their_texts_are(
    by: str, name: str, tmp_path: Path
) -> None:
    ids = [[7, 8], [9], [5, 6, 4], [3]]
    if by == "prompt":
        rows = [
            {"step": 1, "prompt_id": label, "prompt_ids": [1, 2], name: part, "rewards": [1.0, 0.0]}
            for label, part in (("p", ids[:2]), ("q", ids[2:]))
        ]
    else:
        prompts = [[1, 2], [1, 2], [2, 1], [2, 1]]
        rows = [{"step": 1, "prompt_id": [*"ppqq"], "prompt_ids": prompts, name: ids, "rewards": [1.0, 0.0, 1.0, 0.0]}]
    run = read_run(write_lines(tmp_path / "log.jsonl", *rows, {**rows[0], "step": 2}))
    assert [rollout.completion_ids for group in run.groups_at(1) for rollout in group.rollouts] == [*map(tuple, ids)]
    assert [group.rewards for group in run.groups_at(1)] == [(1.0, 0.0)] * 2


def test_rewards_of_single_tokens_are_no_rollouts() -> None:
    rows = [{"id": name, "completion_ids": [7, 8, 9], "rewards": [0.0, 0.0, 1.0]} for name in "ab"]
    assert layout_of(rows, ColumnNames()) is None


def test_rollouts_may_lie_in_a_list_of_groups(tmp_path: Path) -> None:
    samples = [[{"group_index": g, "prompt": "p", "response": f"{n}", "reward": n} for n in (0, 1)] for g in (0, 1)]
    rows = [{"step": step, "samples": samples} for step in (1, 2)]
    for name in ("a.jsonl", "a.json"):
        assert [group.size for group in read_run(write_rows(tmp_path / name, rows)).groups] == [2] * 4


def test_what_stands_around_holds_within_but_for_rewards() -> None:
    row = {"step": 3, "reward": 0.5, "tags": ["x"], "prompt": MESSAGES[0], "samples": [{"reward": 1.0}, "none"]}
    layout = (Level(name="samples"),)
    assert list(rows_within(row, layout)) == [{"step": 3, "prompt": MESSAGES[0], "reward": 1.0}]
    assert list(rows_within(row | {"samples": None}, layout)) == []
    assert (title_of(layout), title_of((Level(key_column="step"),))) == (
        "the list 'samples'",
        "the lists under the keys",
    )


def test_columns_within_are_named(tmp_path: Path) -> None:
    steps = [{"step": step, "rollouts": [row | {"mine": 1 - row["reward"]} for row in flat(step)]} for step in (1, 2)]
    path = write_rows(tmp_path / "log.json", steps)
    run = read_run(path, naming(reward="mine"))
    assert run.groups[0].rewards == tuple(1 - reward for reward in REWARDS[1, "p"])
    refusal(path, "There is no column 'nowhere'", naming(reward="nowhere"), error=UsageError)


FLAWS: tuple[dict[str, Any], ...] = (
    {"reward": None},
    {"reward": math.nan},
    {"prompt": ""},
    {"prompt": None},
    {"reward": "x"},
    {"reward": [1]},
)


@pytest.mark.parametrize(
    ("kind", "flaw"),
    [("list", {}), *(("list", FLAWS[i]) for i in (0, 3, 5)), *(("batch", FLAWS[i]) for i in (1, 5)), ("batch", {})]
    + [("keys", FLAWS[i]) for i in (1, 2, 4)],
)
def test_rollouts_within_rows_are_columns_as_the_row_reader_has_them(
    kind: str, flaw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for step in range(1, 7):
        inner = [{"prompt": f"q{i // 2}", "completion": f"{step}{i}", "reward": i % 3 / 2} for i in range(6)]
        inner[1] |= flaw if step == 4 else {}
        by_key = {key: [rollout | {"completion": key} for rollout in inner] for key in "ab"}
        if kind == "batch":
            lists = {f"{name}s": [rollout[name] for rollout in inner] for name in inner[0]}
            rows.append({"step": step, "loss": 0.5, **lists})
        else:
            rows.append({"step": step, "loss": 0.5, "rollouts": inner if kind == "list" else by_key})
    log = write_lines(tmp_path / "log.jsonl", *rows, {"step": 7, "loss": 0.5})
    run = assert_reduced(log)
    assert run.source.num_rows >= 30
    monkeypatch.setattr(nested, "_cells_in_lists", lambda *_: None)
    assert answers(read_run(log, rewards_only=True)) == answers(run)


@pytest.mark.parametrize("name", ["step", "global_step", "iteration"])
@pytest.mark.parametrize("key", ["rollouts", "data", "samples", "groups"])
def test_the_step_of_a_document_is_that_of_its_rows(name: str, key: str, tmp_path: Path) -> None:
    for n, stem in enumerate(("a", "b")):
        rows = GROUPED[n]["groups"] if key == "groups" else flat(n + 1)
        step = f"step_{n + 3}" if name == "iteration" else n + 3
        (tmp_path / f"dump_{stem}.json").write_text(json.dumps({name: step, "lr": 1e-6, key: rows, "step_time": 0.5}))
    run = read_run(tmp_path, rewards_only=True)
    assert [(group.step - 2, group.rewards) for group in run.groups] == [(n, r) for (n, _), r in REWARDS.items()]
    (tmp_path / "dump_b.json").write_text((tmp_path / "dump_a.json").read_text())
    if key in ("samples", "groups"):
        refusal(tmp_path, "holds 2 evaluations, which are never pooled")


@pytest.mark.parametrize("is_document", [False, True])
def test_an_entry_named_with_its_list_is_that_of_rollouts_of_several_prompts(is_document: bool, tmp_path: Path) -> None:
    """It was the reward of one prompt's samples, whatever the prompts were."""
    rows = [
        {"step": step, "rollouts": [{"prompt": row["prompt"], "rm_score": row["reward"]} for row in flat(step)]}
        for step in (1, 2)
    ]
    path = write_rows(tmp_path / "log.json", {"config": {}, "steps": rows} if is_document else rows)
    hint = refusal(path, "has no column that is known to be a reward|is not a log")
    assert hint == "Name the number that the trainer used, as in --reward-column rollouts.rm_score."
    for name in ("rollouts.rm_score", "rm_score"):
        run = read_run(path, naming(reward=name), rewards_only=True)
        assert [(group.step, group.rewards) for group in run.groups] == [
            (step, rewards) for (step, _), rewards in REWARDS.items()
        ]


@pytest.mark.parametrize("key", ["{}", "task_{}", "HumanEval/{}"])
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("name", ["question", "task_id", None])
def test_each_key_of_a_document_may_have_a_rollout(name: str | None, around: bool, key: str, tmp_path: Path) -> None:
    prompts = ({name: f"{i}?"} if name else {} for i in range(3))
    rows = {key.format(i): {"response": "a", "correct": i > 0, **prompt} for i, prompt in enumerate(prompts)}
    rows[key.format(3)] = {"error": "timeout"} | ({name: "3?"} if name else {})
    path = write_lines(tmp_path / "a.json", json.dumps({"model": "m", "results": rows} if around else rows))
    rewards = [group.rewards for group in read_run(path).groups]
    assert sorted(group for group in rewards if group != (None,)) == [(0.0,), (1.0,), (1.0,)]


def test_each_key_of_a_document_may_have_a_row_of_a_log(tmp_path: Path) -> None:
    rows = {f"{step}{prompt}{index}": rollout | {"step": step, "uid": f"{step}{prompt}"}
            for step, prompt in REWARDS for index, rollout in enumerate(rollouts(step, prompt))}  # fmt: skip
    path = write_lines(tmp_path / "a.json", json.dumps(rows))
    assert {(group.step, group.rewards) for group in read_run(path).groups} == {
        (step, rewards) for (step, _), rewards in REWARDS.items()
    }


def test_each_key_beside_a_question_has_a_policy(tmp_path: Path) -> None:
    rows = {"q1": {"response": "a", "correct": True}, "q2": {"response": "b", "correct": False}}
    run = read_run(write_lines(tmp_path / "a.json", json.dumps({"question": "2+2?", **rows})))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0)]
