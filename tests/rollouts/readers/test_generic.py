import json
import math
import shlex
import tempfile
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.errors import GradscopeError
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers import generic
from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.build import adapter_folder, model_folder
from tests.rollouts.readers.lines import IDS, naming, refusal, rewards_of, set_aside, steps_logged, write_rows
from tests.rollouts.readers.lines import write_lines as write
from tests.rollouts.readers.reduced import assert_same


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"step": 1, "group_id": group, "reward": 1.0} for group in (1.0, math.nan, 2.0)], "group_id is missing"),
        ([{"task_id": task, "passed": True} for task in (1.0, math.nan, 2.0)], "task_id is missing"),
        (
            [{"task_id": task, "responses": ["a"], "rewards": [1.0]} for task in (1.0, math.nan, 2.0)],
            "the id of its prompt is missing",
        ),
    ],
)
def test_nan_where_an_id_should_be_is_no_id(suffix: str, rows: list[dict[str, Any]], why: str, tmp_path: Path) -> None:
    write_rows(tmp_path / f"log{suffix}", rows)
    for rewards_only in (True, False):
        run = read_run(tmp_path / f"log{suffix}", rewards_only=rewards_only)
        assert [group.prompt_id for group in run.groups] == ["1.0", "2.0"]
        assert set_aside(run) == {why: 1}


@pytest.mark.parametrize(
    "checkpoint", ["checkpoint-1", "a_step_1", "update-1", "checkpoints/1", "ckpt_1/hf_model", "epoch_2_step_1"]
)
def test_a_script_may_leave_metrics_and_checkpoints_beside_its_rollouts(checkpoint: str, tmp_path: Path) -> None:
    rows = [{"step": 1, "group": "g", "prompt": "2+2?", "completion": "4", "reward": i, **IDS} for i in (0, 1)]
    write(tmp_path / "rollouts" / "step_1.jsonl", *rows)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "grad_norm": 0.25, "reward": 0.5}\n')
    model_folder(tmp_path / checkpoint)
    for path in (tmp_path / "rollouts", tmp_path / "rollouts" / "step_1.jsonl"):
        run = read_run(path)
        assert run.metrics == {1: {"grad_norm": 0.25, "reward": 0.5}}
        assert [weights.num_updates for weights in run.weights] == [1] * ("epoch" not in checkpoint)
        assert run.groups_at(1)[0].rollouts[0].completion_ids == (7, 11, 2)
    for cells in ('"gnorm": "0.25"', '"train": {"grad_norm": 0.25}'):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, ' + cells + "}\n")
        assert read_run(tmp_path / "rollouts").metrics[1]["grad_norm"] == 0.25
    (tmp_path / "metrics.jsonl").rename(tmp_path / "notes.txt")
    for name in ("log.csv", "log2.csv"):
        (tmp_path / name).write_text("step,loss,gradient_norm,reward\n1,0.5,0.25,0.5\n")
        run = read_run(tmp_path / "rollouts")
        assert run.metrics.get(1, {}).get("grad_norm") == (0.25 if name == "log.csv" else None)
    assert run.source.missing[-1].startswith(f"Metrics lie in 2 files ({tmp_path}/log.csv, {tmp_path}/log2.csv): which")


@pytest.mark.parametrize(("first", "numbers"), [(0, [-1, 0, 1]), (1, [0, 1])])
def test_checkpoint_0_of_a_script_that_counts_from_0_is_not_what_training_began_with(
    first: int, numbers: list[int], tmp_path: Path
) -> None:
    for step in (first, first + 1):
        rows = [{"step": step, "prompt": "2+2?", "completion": "4", "reward": i, **IDS} for i in (0, 1)]
        write(tmp_path / "rollouts" / f"step_{step}.jsonl", *rows)
    for name in ("checkpoint-0", "checkpoint-1", "W0"):
        model_folder(tmp_path / name)
    run = read_run(tmp_path / "rollouts", ReadOptions(initial_weights=tmp_path / "W0"))
    assert [weights.num_updates for weights in run.weights] == numbers
    assert run.weights[0].path == tmp_path / "W0"


PER_ROW = (
    '"completions": ["4", "5"], "completion_ids": [[7, 2], [8]], "rewards": [1.0, 0], "advantages": [0.5, -0.5]}\n'
)
LISTS = {
    "prompts_{}.jsonl": '{"step": 1, "prompt": "q", "prompt_ids": [5, 9], ' + PER_ROW,
    "steps.jsonl": '{"step": 1, "prompts": ["q", "q"], "prompt_ids": [[5, 9], [5, 9]], ' + PER_ROW,
    "samples.jsonl": '{"step": 1, "prompt": "q", "prompt_ids": [5, 9], "samples": [{"text": "4", "reward": 1, '
    '"adv": 0.5, "completion_ids": [7, 2]}, {"text": "5", "reward": 0, "adv": -0.5, "completion_ids": [8]}]}\n',
    "rows.csv": 'step,prompt,prompt_ids,response_ids,score,adv\n1,q,"[5, 9]","[7, 2]",1,0.5\n1,q,"[5, 9]",[8],0,-0.5\n',
}


@pytest.mark.parametrize("file", LISTS)
def test_a_script_may_log_rollouts_as_lists_or_cells_of_text(file: str, tmp_path: Path) -> None:
    for step in (2, 1):
        (tmp_path / file.format(step)).write_text(LISTS[file].replace('"step": 1', f'"step": {step}'))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "grad_norm": 0.25}\n')
    model_folder(tmp_path / "checkpoint-0")
    run = read_run(tmp_path)
    assert (run.source.format, run.metrics, len(run.weights)) == ("generic", {1: {"grad_norm": 0.25}}, 1)
    rollouts = [(r.prompt_ids, r.completion_ids, r.reward, r.advantage) for r in run.groups_at(1)[0].rollouts]
    assert rollouts == [((5, 9), (7, 2), 1.0, 0.5), ((5, 9), (8,), 0.0, -0.5)]


@pytest.mark.parametrize(("name", "steps"), [("step_000{}.json", (1, 2)), ("eval_step_{}.json", None)])
def test_a_script_may_name_the_step_of_rollouts_in_their_files_alone(
    name: str, steps: tuple | None, tmp_path: Path
) -> None:
    (tmp_path / "rollouts").mkdir()
    for step in (1, 2):
        rows = [{"prompt": "2+2?", "completion": "4", "reward": i, **IDS} for i in (0, step)]
        (tmp_path / "rollouts" / name.format(step)).write_text(json.dumps(rows))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "grad_norm": 0.25}\n{"step": 2, "grad_norm": 0.5}\n')
    run = read_run(tmp_path, metrics_alone=True)
    assert run.metrics[2]["grad_norm"] == 0.5
    assert (run.steps, [group.rewards for step in run.steps for group in run.groups_at(step)]) == (
        (steps, [(0.0, 1.0), (0.0, 2.0)]) if steps else ((), [])
    )


LOGGED = [{"step": step, "loss": 0.5, "gnorm": 0.25 / step} for step in (1, 2)]
LINES = "\n".join(map(json.dumps, LOGGED))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("train_log.jsonl", LINES),
        ("logs.json", json.dumps(LOGGED)),
        ("trainer_state.json", json.dumps({"log_history": LOGGED})),
        ("logs/metrics.jsonl", LINES),
        ("wandb/run-1/history.json", json.dumps([{f"train/{key}": row[key] for key in row} for row in LOGGED])),
        ("train.log", "INFO step=1 loss=0.5 grad_norm=0.25\nINFO step=2 loss=0.5 grad_norm=0.125"),
    ],
)
@pytest.mark.parametrize("rollouts", ["rollouts.jsonl", "samples/all.jsonl"])
def test_a_scripts_log_may_have_any_name_that_a_log_has(tmp_path: Path, rollouts: str, file: str, content: str) -> None:
    rows = [{"step": 1, "group": "g", "prompt": "2+2?", "completion": "4", "reward": i, **IDS} for i in (0, 1)]
    for name, text in (
        (rollouts, "\n".join(map(json.dumps, rows))),
        (file, content),
        ("eval.json", '[{"step": 1, "reward": 0.5}]'),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    model_folder(tmp_path / "epoch_0" / "step_1")
    (tmp_path / "run.toml").write_text("num_iterations = 2")
    run = read_run(tmp_path / rollouts, ReadOptions(trainer_args=tmp_path / "run.toml"))
    assert ([weights.num_updates for weights in run.weights], run.repeats) == ([1], {2: 1})
    assert run.metrics[1].get("grad_norm") == 0.25


@pytest.mark.parametrize(
    ("pattern", "lacking", "num_groups"),
    [
        *((pattern, (), 6) for pattern in ("rollouts_step{}.jsonl", "global_step_{}.json", "{}.jsonl")),
        ("iter-{}_rank0.jsonl", ("group_id",), 6),
        ("train_rollout_{}.jsonl", (), 6),  # XTuner's
        ("{}.jsonl", ("prompt",), 6),
        ("shard{}.jsonl", (), 6),  # no step, but the prompts tell groups apart
        ("test_step_{}.jsonl", (), None),
    ],
)
def test_file_numbers_are_steps(pattern: str, lacking: tuple[str, ...], num_groups: int | None, tmp_path: Path) -> None:
    for step in (8, 9, 10):
        rows = [{name: cell for name, cell in row.items() if name not in lacking} for row in steps_logged(step)]
        file = tmp_path / pattern.format(step)
        write(file, *rows) if file.suffix == ".jsonl" else file.write_text(json.dumps(rows))
    if num_groups is None:
        refusal(tmp_path, "holds 3 evaluations")
        return
    table = reward_table(read_run(tmp_path).groups)
    assert table.size.tolist() == [2] * num_groups
    assert sorted(set(table.step.tolist())) == ([0] if "shard" in pattern else [8, 9, 10])


@pytest.mark.parametrize(
    "pattern", ["{}.jsonl", "rollouts_{:06}.jsonl", "epoch{}.csv", "batch-{}.parquet", "step{}/rollouts.jsonl"]
)
def test_file_numbers_are_steps_where_whole_groups_of_some_prompts_come_again(pattern: str, tmp_path: Path) -> None:
    for step, prompts in enumerate(("ab", "bc", "ca"), start=1):
        rows = [{"prompt": prompt, "completion": f"{i}", "reward": i % 2} for prompt in prompts for i in range(4)]
        write_rows(tmp_path / pattern.format(step), rows)
    groups = read_run(tmp_path / "step*/rollouts.jsonl" if "step" in pattern else tmp_path).groups
    assert [(group.step, group.size) for group in groups] == [(step, 4) for step in (1, 1, 2, 2, 3, 3)]


@pytest.mark.parametrize(
    "pattern",
    [
        *("step_{}/rank{}.jsonl", "step_{}/{}.jsonl", "global_step_{}/dp_rank_{}/out.jsonl", "rank{1}/step{0}.jsonl"),
        *("rank{1}_step{0}.jsonl", "iter_{}/train/worker-{}.json", "epoch_0/step_{}/shard{}.jsonl"),
    ],
)
def test_the_files_of_a_step_are_of_several_processes(pattern: str, tmp_path: Path) -> None:
    for step, rank in product((8, 9, 10), range(2)):
        rows = [{"prompt": prompt, "completion": f"{rank}{i}", "reward": rank} for prompt in "ab" for i in range(2)]
        write_rows(tmp_path / pattern.format(step, rank), rows)
    files = str(tmp_path / "/".join(["*"] * (pattern.count("/") + 1)))
    groups = read_run(files).groups
    assert [(group.step, group.rewards) for group in groups] == [(name, (0, 0, 1, 1)) for name in (8, 8, 9, 9, 10, 10)]
    if pattern.startswith(("step", "global", "iter", "epoch")):
        assert f"'{files}.json" in refusal(tmp_path, r"holds \d evaluations")


@pytest.mark.parametrize("pattern", ["step_{}/seed_{}/x.jsonl", "step_{}/eval/rank{}.jsonl", "step_{}/a{}.jsonl"])
def test_the_files_of_a_step_are_of_several_logs(pattern: str, tmp_path: Path) -> None:
    for step, i in product((8, 9), range(2)):
        write_rows(tmp_path / pattern.format(step, i), [{"prompt": "a", "reward": i}, {"prompt": "a", "reward": 0}])
    assert not generic.steps_of_files(tmp_path / "/".join(["*"] * (pattern.count("/") + 1)), ColumnNames())


@pytest.mark.parametrize("prompts", [("ab", "ab"), ("ab", "cd")])
def test_file_numbers_are_no_steps_of_prompts_that_are_all_the_same_or_all_others(
    prompts: tuple[str, str], tmp_path: Path
) -> None:
    for step, letters in enumerate(prompts):
        rows = ({"prompt": prompt, "completion": f"{i}", "reward": i % 2} for prompt in letters for i in range(4))
        write(tmp_path / f"{step}.jsonl", *rows)
    groups = read_run(tmp_path).groups
    assert ({group.step for group in groups}, sum(group.size for group in groups)) == ({0}, 16)


@pytest.mark.parametrize("pattern", ["train/rollouts_{}.jsonl", "episodes/eps_{:06}.json", "rank_{1}/episode{0}.jsonl"])
@pytest.mark.parametrize("prompts", ["abcd", "abbc", "abab"])
def test_numbers_of_rollouts_are_steps_of_any_prompts_but_the_same(prompts: str, pattern: str, tmp_path: Path) -> None:
    """As nano-aha-moment writes episodes, whose prompts seldom return, next to those of evaluations."""
    for step, (rank, folder) in product((1, 2), enumerate((".", "eval_episodes"))):
        letters = prompts[2 * step - 2 : 2 * step]
        rows = [{"query": query, "response": f"{i}", "reward": i % 2} for query in letters for i in range(4 - rank)]
        write_rows(tmp_path / folder / pattern.format(step, rank), rows)
    named = shlex.split(refusal(tmp_path, "holds 4 evaluations").partition("are named so: ")[2])
    if prompts == "abab":
        assert not named
        return
    assert "eval_episodes" not in named[0]
    groups = read_run(named[0]).groups
    assert [(group.step, group.size) for group in groups] == [(1, 4), (1, 4), (2, 4), (2, 4)]


@pytest.mark.parametrize("folders", [("a", "b"), ("train", "val"), ("seed_1", "seed_2"), ("step_1", "step_2-b")])
def test_steps_in_folders_of_several_runs_are_not_pooled(folders: tuple[str, str], tmp_path: Path) -> None:
    for folder, step in product(folders, (1, 2)):
        rows = [{"prompt": "a", "completion": f"{folder}{i}", "reward": i % 2} for i in range(4)]
        write_rows(tmp_path / folder / f"step_{step}.jsonl", rows)
    refusal(tmp_path / "*/step_*.jsonl", "holds 4 evaluations")
    assert len(read_run(tmp_path / folders[0] / "step_*.jsonl").groups) == 2


@pytest.mark.parametrize(("sizes", "num_prompts"), [((4, 4, 4), 3), ((4, 4, 3), 3), ((4, 3, 4), 11), ((12,), 12)])
def test_ids_of_rows_are_no_ids_of_prompts(sizes: tuple[int, ...], num_prompts: int, tmp_path: Path) -> None:
    texts = [f"question {index}" for index, size in enumerate(sizes) for _ in range(size)]
    rows = [{"prompt_id": f"row{index}", "prompt": text, "reward": index % 2} for index, text in enumerate(texts)]
    path = write(tmp_path / "log.jsonl", *rows)
    assert len(read_run(path).groups) == num_prompts
    assert len(read_run(path, naming(prompt_id="prompt_id")).groups) == len(rows)


@pytest.mark.parametrize("rewards_only", [False, True])
def test_columns_as_pandas_writes_them_are_rows(rewards_only: bool, tmp_path: Path) -> None:
    rows = [{"step": step, "prompt": "p", "score": float(index)} for step in (1, 2) for index in range(2)]
    columns = {name: {str(index): row[name] for index, row in enumerate(rows)} for name in rows[0]}
    run = read_run(write_rows(tmp_path / "log.json", columns), rewards_only=rewards_only)
    assert [(group.step, group.rewards) for group in run.groups] == [(1, (0.0, 1.0)), (2, (0.0, 1.0))]


@pytest.mark.parametrize("arm", ["condition", "method", "seed_of_sampling"])
def test_rounds_are_no_steps_where_each_has_a_sample_of_several_conditions(arm: str, tmp_path: Path) -> None:
    rows = [
        {"round": number, "task_id": task, arm: name, "correct": name == "trained"}
        for number, name, task in product(range(1, 4), ("base", "trained"), "ab")
    ]
    groups = read_run(write_rows(tmp_path / "a.jsonl", rows)).groups
    is_arm = not arm.startswith("seed")
    assert {group.step for group in groups} == ({0} if is_arm else {1, 2, 3})
    assert {group.rewards for group in groups} == ({(0, 0, 0), (1, 1, 1)} if is_arm else {(0, 1)})


def test_a_folder_of_folders_has_no_columns(tmp_path: Path) -> None:
    write(tmp_path / "a" / "rollouts.jsonl", {"step": 1, "prompt": "p", "reward": 1})
    refusal(tmp_path, "its columns are none", ReadOptions(reader="generic"))


def test_rows_of_a_group_may_be_anywhere(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        *({"step": s, "uid": u, "task_id": "t", "prompt": "p", "response": "r", "score": r, "advantage": 0.5}
          for s, u, r in ((2, "x", 1), (1, "x", 0), (2, "y", 0), (2, "x", 0), (1, "x", 1), (2, "x", 1))),
    )  # fmt: skip
    run = read_run(path)
    assert rewards_of(run) == {"1:x": (0.0, 1.0), "2:x": (1.0, 0.0, 1.0), "2:y": (0.0,)}
    assert {group.prompt_id for group in run.groups} == {"t"}
    first = run.groups[1].rollouts[1]
    assert (first.sample, first.row, first.prompt, first.completion, first.advantage) == (1, 2, "p", "r", 0.5)
    assert run.source.inferred == (
        "Columns were guessed by their names: reward from 'score', step from 'step', groups from 'uid'.",
        "Groups differ in size: 1 to 3 rollouts.",
    )


def talk(question: str, *answers: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, *({"role": "assistant", "content": answer} for answer in answers)]


@pytest.mark.parametrize(
    "row_of",
    [
        lambda step, q, k, r: {"metadata": {"step": step, "task_id": q}, "prompt": "", "reward": r},
        lambda step, q, k, r: {"step": step, "prompt": talk(q), "info": {"reward": r, "passed_tests": k}},
        lambda step, q, k, r: {"iteration": step, "trajectory": {"question": q, "answer_text": f"{k}", "score": r}},
        lambda step, q, k, r: {"step": step, "prompt": q, "grade": {"passed": r > 0, "score": r, "by": "tests"}},
        lambda step, q, k, r: {"step": step, "messages": talk(q, f"a{k}"), "reward": r},
        lambda step, q, k, r: {"step": step, "prompt_ids": [1, len(q), ord(q[-1])], "total_reward": r, "reward_b": 0.0},
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "json", "rollouts", "parquet"])
def test_entries_of_objects_and_conversations_have_roles_by_usual_names(
    tmp_path: Path, row_of: Callable[[int, str, int, float], dict[str, Any]], kind: str
) -> None:
    rewards = {(1, "q1"): (0.0, 1.0), (1, "q2"): (1.0, 1.0), (2, "q1"): (0.0, 0.0, 1.0)}
    rows = [row_of(step, q, k, r) for (step, q), group_rewards in rewards.items() for k, r in enumerate(group_rewards)]
    if kind == "rollouts":
        path = write_rows(tmp_path / "a.json", {"model": "m", "rollouts": rows})
    else:
        path = write_rows(tmp_path / f"a.{kind}", rows)
    for rewards_only in (False, True):
        run = read_run(path, rewards_only=rewards_only)
        assert [(group.step, group.rewards) for group in run.groups] == [(key[0], x) for key, x in rewards.items()]
    if "messages" in rows[0]:
        assert [rollout.completion for rollout in read_run(path).groups[2].rollouts] == ["a0", "a1", "a2"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "p", "reward": word} for word in ("good", "bad")], "the reward is text, 'good', 'bad'"),
        (
            [{"id": 1, "answer": {"correct": letter}} for letter in "ABC"],
            "no numbers as 'answer.correct': the reward is",
        ),
        ([{"task": "gsm8k", "prompt": "You are", "accuracy": 1.0}], "'accuracy' is that of a whole evaluation"),
        ([{"task_id": "gsm8k", "metrics": {"exact_match": 1.0}}], "'metrics.exact_match' is that of a whole"),
        ([{"task_id": "1", "add_len_reward": False}], "one row, without a response: whether its 'add_len_reward' is"),
        (
            [{"id": 1, "responses": ["4", text], "correct": True} for text in "45"],
            "one 'correct' for several responses",
        ),
        ([{"id": 1, "success": True, "error": None, "usage": i} for i in (7, 9)], "whether calls or answers succ"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_rewards_that_are_none_of_a_sample_are_refused(
    rows: list[dict[str, Any]], message: str, kind: str, tmp_path: Path
) -> None:
    log = write_rows(tmp_path / f"a.{kind}", rows if rows[1:] or kind == "jsonl" else rows[0])
    refusal(log, message)
    answered = [{**row, "accuracy": 1, "metrics": None, "reward": 1, "completion": "4"} for row in rows]
    assert len(read_run(write(log.with_suffix(".jsonl"), *answered)).groups) == 1


@pytest.mark.parametrize("right", [lambda letter: {"correct": letter}, lambda letter: {"answer": {"correct": letter}}])
def test_a_right_answer_that_is_called_correct_is_no_reward_beside_one(right: Any, tmp_path: Path) -> None:
    rows = [{"id": i, **right("ABCD"[i]), "prediction": "A", "accuracy": float(i == 0)} for i in range(4)]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert [group.rewards for group in run.groups] == [(1,), (0,), (0,), (0,)]


def test_rewards_in_an_object_without_their_sum_are_asked_for(tmp_path: Path) -> None:
    rows = [{"step": 1, "prompt": "p", "rewards": {"accuracy": number, "form": 0}} for number in (0, 1)]
    path = write(tmp_path / "a.jsonl", *rows)
    refusal(path, r"'rewards', 'rewards\.accuracy', 'rewards\.form'")
    objects = write(
        tmp_path / "b.jsonl",
        *({"reward" if key == "rewards" else key: cell for key, cell in row.items()} for row in rows),
    )
    refusal(objects, r"has objects as 'reward', with 'reward\.accuracy', 'reward\.form'")
    run = read_run(path, naming(reward="rewards.accuracy"))
    assert list(rewards_of(run).values()) == [(0.0, 1.0)]
    assert run.groups[0].rollouts[1].rewards == {"rewards.accuracy": 1.0, "rewards.form": 0.0}
    for name, entry in product(("reward", "rewards"), ("total", "reward")):
        summed = ({"step": 1, "prompt": "p", name: row["rewards"] | {entry: 0.5}} for row in rows)
        run = read_run(write(tmp_path / "c.jsonl", *summed))
        assert [group.rewards for group in run.groups] == [(0.5, 0.5)]
        assert run.groups[0].rollouts[1].rewards[f"{name}.accuracy"] == 1.0


@pytest.mark.parametrize("ids", [False, True])
def test_rollouts_of_nemo_gym_are_grouped_by_task(ids: bool, tmp_path: Path) -> None:
    """The entry `prompt` of what was asked, a template's, is null."""
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"{task}?"}], "prompt": None},
            "response": {"output": []},
            "reward": float(task),
            **({"doc_id": 1, "_ng_task_index": task, "_ng_rollout_index": sample} if ids else {}),
        }
        for task in (0, 1)
        for sample in range(3)
    ]
    run = read_run(write(tmp_path / "rollouts.jsonl", *rows))
    assert [group.rewards for group in run.groups] == [(0.0,) * 3, (1.0,) * 3]


def test_an_id_groups_and_only_without_one_the_text_does(tmp_path: Path) -> None:
    rows = [{"step": 1, "prompt": "same", "problem_id": n, "reward": 1.0} for n in (1, 2)]
    assert len(read_run(write(tmp_path / "a.jsonl", *rows)).groups) == 2
    bare = [{"step": 1, "prompt": "same", "reward": 1.0}] * 2
    run = read_run(write(tmp_path / "b.jsonl", *bare))
    assert len(run.groups) == 1
    assert "grouped by the prompt's text" in run.source.inferred[1]


def test_ids_that_recur_without_a_step_are_no_groups(tmp_path: Path) -> None:
    rows = [row for step in range(3) for row in steps_logged(step)]
    run = read_run(write(tmp_path / "a.jsonl", *rows))
    assert [group.rewards for group in run.groups] == [(0.0, 0.0), (0.0, 1.0)] * 3
    assert run.source.inferred[-1].startswith("The column of groups has the same ids with several prompts")
    bare = write(tmp_path / "b.jsonl", *({"group_id": row["group_id"], "reward": row["reward"]} for row in rows))
    refusal(bare, "has the same ids in 'group_id' again and again")
    labelled = [{"group": "train", "task_id": index // 3, "reward": index % 2, "step": 7} for index in range(12)]
    for labels in (labelled, [{key: cell for key, cell in row.items() if key != "step"} for row in labelled]):
        assert [group.prompt_id for group in read_run(write(tmp_path / "c.jsonl", *labels)).groups] == list("0123")
    stepped = [row | {"step": 1} for row in rows]  # as of several workers that count their own groups
    assert len(read_run(write(tmp_path / "d.jsonl", *stepped)).groups) == 6
    for columns, path in ((ColumnNames(group="group_id"), bare), (ColumnNames(step="sample"), tmp_path / "a.jsonl")):
        assert reward_table(read_run(path, ReadOptions(columns=columns)).groups).size.tolist() in ([6, 6], [3] * 4)
    turns = [{"group_id": n // 2, "prompt": str(n), "reward": 1.0} for n in range(6)]  # of one rollout each
    assert len(read_run(write(tmp_path / "c.jsonl", *turns)).groups) == 3


@pytest.mark.parametrize("key", ["task_id", "prompt", "group_id"])
@pytest.mark.parametrize("backwards", [False, True])
def test_groups_that_return_without_a_step_are_not_one(key: str, backwards: bool, tmp_path: Path) -> None:
    """Of 152 groups of two 60 were read, and 1.7 % had no gradient where 20.4 % had none."""
    order = [*range(9), *(range(9)[::-1] if backwards else range(6))]
    rows = [{key: f"t{i}", "reward": float(i % 3 == 0)} for i in order for _ in range(2)]
    path = write(tmp_path / "log.jsonl", *rows)
    assert "number groups of 2 rows: jq -c" in refusal(path, "again and again")
    sizes = reward_table(read_run(path, naming(group=key)).groups).size.tolist()
    assert sizes == ([4] * 9 if backwards else [4] * 6 + [2] * 3)
    for name, names in {"model": "ab", "trial": (1, 2), "step": (1, 2)}.items():
        read_run(write(tmp_path / "apart.jsonl", *(row | {name: names[i >= 18]} for i, row in enumerate(rows))))


@pytest.mark.parametrize(
    ("group", "prompt_id", "size"),
    [
        ("sample", "prompt", 4),
        ("number", "prompt", 4),  # from 1 on
        ("prompt", "sample", 4),  # a group's own number beside one of its samples
        ("batch", "returning", 8),  # of different prompts, each of which returns
    ],
)
def test_a_column_that_numbers_the_samples_of_each_prompt_is_no_group(
    tmp_path: Path, group: str, prompt_id: str, size: int
) -> None:
    rows = [
        {"step": index // 32, "prompt": index // 4 % 16, "sample": index % 4, "number": index % 4 + 1}
        | {"batch": index // 8, "returning": index % 64}
        for index in range(128)
    ]
    named = ({"step": row["step"], "group_index": row[group], "prompt_id": row[prompt_id]} for row in rows)
    log = write(tmp_path / "a.jsonl", *(cells | {"reward": index % 2} for index, cells in enumerate(named)))
    assert set(reward_table(read_run(log).groups).size.tolist()) == {size}


@pytest.mark.parametrize(
    "pattern", ["rollouts_{}.jsonl", "global_step_{}.json", "table/samples_{}_{}.table.json", "{}.parquet"]
)
def test_files_that_repeat_what_was_written_before_are_refused(pattern: str, tmp_path: Path) -> None:
    """As scripts do that log a table which grows, of which W&B keeps each state."""
    rows = [row | {"completion": f"{step}{index}"} for step in range(3) for index, row in enumerate(steps_logged(step))]
    for num in (1, 2, 3):
        path = tmp_path / pattern.format(num, f"{num:020x}")
        table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows[: 4 * num]]}
        path.parent.mkdir(exist_ok=True)
        write_rows(path, table if path.match("*.table.json") else rows[: 4 * num])
    hint = refusal(tmp_path / pattern.format("*", "*"), r"2\S* begins with the rows of \S*1\S*, and groups would")
    last = shlex.split(hint)[-1]
    assert Path(last) == path
    assert sum(group.size for group in read_run(last).groups) == 12


def test_tables_that_wandb_keeps_of_each_step_are_steps(tmp_path: Path) -> None:
    for step in range(3):
        table = {
            "columns": ["query", "response", "reward"],
            "data": [[f"{step}{i % 2}", f"{i}", i % 3] for i in range(8)],
        }
        for folder, name in (("numbered", f"iter_{step:06}"), ("plain", "samples")):
            (tmp_path / folder).mkdir(exist_ok=True)
            write_rows(tmp_path / folder / f"{name}_{step + 5}_{7**22 + step:020x}.table.json", table)
    for folder, first in (("numbered", 0), ("plain", 5)):
        groups = read_run(tmp_path / folder).groups
        assert [(group.step - first, group.size) for group in groups] == [(step, 4) for step in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize(
    ("image", "answer", "num_groups"),
    [
        ("image", "response", 8),
        ("image_path", "model_output", 8),  # VLM-R1's evaluation
        ("video", None, 8),
        ("picture", "response", 4),  # a name that may as well be of a sample
    ],
)
@pytest.mark.parametrize("form", ["{}", "[{}]", '{{"bytes": null, "path": {}}}', "csv"])
def test_questions_about_several_images_are_several_prompts(
    image: str, answer: str | None, num_groups: int, form: str, tmp_path: Path
) -> None:
    cells = product(range(2), range(4), range(3))
    rows = [
        {"step": s, "problem": f"how many {k % 2}?", image: f"{k}.png", "r": f"{k}{n}", "reward": n % 2}
        for s, k, n in cells
    ]
    rows = [{answer or "noise": row.pop("r"), **row} for row in rows]
    if form != "csv":
        rows = [row | {image: json.loads(form.format(json.dumps(row[image])))} for row in rows]
    log = write_rows(tmp_path / f"a.{'csv' if form == 'csv' else 'jsonl'}", rows)
    assert_same(log)
    run = read_run(log)
    assert [group.size for group in run.groups] == [24 // num_groups] * num_groups
    assert (f"Prompts of one text are told apart by {image!r}, too." in run.source.inferred) == (num_groups == 8)
    assert len(set(reward_table(run.groups).prompts)) == num_groups // 2


@pytest.mark.parametrize(
    ("cells", "sizes"), [({"step": 1}, [4] * 8), ({"step": 1, "response": "a"}, [4] * 8), ({"response": "a"}, [1] * 32)]
)
def test_an_image_that_is_of_one_row_may_be_its_sample(cells: dict[str, Any], sizes: list[int], tmp_path: Path) -> None:
    rows = [cells | {"prompt": f"a dog {i // 4}", "image": f"{i}.png", "reward": i % 3} for i in range(32)]
    assert [group.size for group in read_run(write_rows(tmp_path / "a.jsonl", rows)).groups] == sizes


def test_copies_are_refused(tmp_path: Path) -> None:
    rows = [row | {"completion": str(row["sample"]), "step": step} for step in range(20) for row in steps_logged(step)]
    assert len(read_run(write(tmp_path / "few.jsonl", *rows[:4] * 2)).groups) == 2
    refusal(write(tmp_path / "twice.jsonl", *(row for row in rows for _ in "ab")), "has each row 2 times")
    for process in "ab":
        write(tmp_path / "files" / f"process-{process}.jsonl", *rows)
    refusal(tmp_path / "files", r"process-b.jsonl is a copy of .*process-a.jsonl", ReadOptions(reader="generic"))
    timed = [row | {"written": index / 7} for index, row in enumerate(rows)]
    refusal(write(tmp_path / "timed.jsonl", *rows, *timed), "has each row 2 times")
    write(tmp_path / "files" / "process-b.jsonl", *timed[::-1])
    write(tmp_path / "files" / "process-a.jsonl", *timed)
    refusal(tmp_path / "files", "files has each row 2 times", ReadOptions(reader="generic"))
    many = [row | {"completion": str(index)} for index, row in enumerate(rows * 20)]
    shuffled = sorted(many * 2, key=lambda row: int(row["completion"]) * 7919 % 997)
    refusal(write(tmp_path / "shuffled.jsonl", *shuffled), "has each row 2 times")
    few_texts = [row | {"completion": row["completion"][:1]} for row in many]
    assert len(read_run(write(tmp_path / "few_texts.jsonl", *few_texts)).groups) == 40
    equal = [row | {"completion": "same", "sample": 0, "reward": 0.0} for row in rows]  # all that the policy wrote
    assert len(read_run(write(tmp_path / "alike.jsonl", *equal)).groups) == 40


@pytest.mark.parametrize(("episodes", "rises"), [(range(8), True), ([0, 1, 2, 3] * 2, False), ([3] * 8, False)])
def test_episodes_that_rise_may_be_steps_of_training(episodes: Iterable[int], rises: bool, tmp_path: Path) -> None:
    rows = [{"episode": episode, "task_id": "t", "reward": episode % 2} for episode in episodes]
    path = write(tmp_path / "a.jsonl", *rows)
    assert any("--step-column episode" in sentence for sentence in read_run(path).source.inferred) == rises
    assert len(read_run(path, naming(step="episode")).groups) == len(set(episodes))


def test_numbers_of_prompts_tell_them_apart_where_nothing_else_does(tmp_path: Path) -> None:
    rows = [{"puzzle_id": index // 2, "correct": index % 3 == 0} for index in range(8)]
    assert [group.size for group in read_run(write(tmp_path / "a.jsonl", *rows)).groups] == [2] * 4
    questions = [row | {"prompt": "p", "puzzle_id": index} for index, row in enumerate(rows)]
    assert [group.size for group in read_run(write(tmp_path / "b.jsonl", *questions)).groups] == [8]


def test_filters_that_an_older_harness_does_not_name_are_refused(tmp_path: Path) -> None:
    rows = [{"doc_id": doc, "resps": [["1"]], "filtered_resps": ["1"], "exact_match": 1.0} for doc in range(30)]
    assert len(read_run(write(tmp_path / "a.jsonl", *rows)).groups) == 30
    refusal(write(tmp_path / "b.jsonl", *rows, *rows), "has each row 2 times")


@pytest.mark.parametrize("mark", [{"done": False}, {"terminated": 0}, {"is_terminal": False}, {"next_obs": "a room"}])
def test_steps_of_episodes_are_refused(mark: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"task_id": task, "step": step, "reward": 0.1, **mark} for task in "ab" for step in range(3)]
    refusal(write(tmp_path / "a.jsonl", *rows), "has a row for each step of an episode")
    assert read_run(tmp_path / "a.jsonl", naming(step="step")).steps == (0, 1, 2)
    finished = [row | {"done": True} for row in rows if "done" in row]
    assert not finished or len(read_run(write(tmp_path / "b.jsonl", *finished)).groups) == 6
    states = [{**row, "prompt": f"state {index}"} for index, row in enumerate(rows) if row.pop("step") >= 0]
    refusal(write(tmp_path / "c.jsonl", *states), "has a row for each step of an episode")
    assert read_run(write(tmp_path / "d.jsonl", *({**row, "prompt": "p"} for row in states))).groups


def test_named_columns_win_over_usual_names(tmp_path: Path) -> None:
    rows = [{"uid": n, "q": "a", "reward": 0.0, "grade": n, "when": 7} for n in (0, 1)]
    path = write(tmp_path / "a.jsonl", *rows)
    run = read_run(path, naming(prompt="q", reward="grade", step="when"))
    assert [(group.step, group.rewards) for group in run.groups] == [(7, (0.0, 1.0))]
    assert run.groups[0].rollouts[0].rewards == {"reward": 0.0, "grade": 0.0}
    assert [group.rewards for group in read_run(path, naming(group="q")).groups] == [(0.0, 0.0)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"uid": 1, "grade": 1}, "has no column that is known to be a reward; its columns are 'uid', 'grade'"),
        ({"reward": 1}, "has no column to group rollouts by; its columns are 'reward'"),
    ],
)
def test_columns_that_cannot_be_guessed_are_asked_for(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a.jsonl", row)
    for format in ("generic", "samples"):
        refusal(path, message, ReadOptions(reader=format))


def test_a_log_without_one_usable_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"uid": 1, "step": 1, "reward": None})
    refusal(path, r"has no usable rows; set aside: 1, first .*a\.jsonl:1: the reward is null")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "1.jsonl").touch()
    refusal(tmp_path / "empty", r"has no usable rows\.", ReadOptions(reader="verl"))


def test_further_rewards_are_kept(tmp_path: Path) -> None:
    row = {"uid": 1, "step": 1, "reward": 1.0, "reward/x": 0.5, "format_reward": "bad", "acc": True, "length": 9}
    rewards = read_run(write(tmp_path / "a.jsonl", row)).groups[0].rollouts[0].rewards
    assert rewards == {"reward": 1.0, "reward/x": 0.5, "format_reward": None, "acc": 1.0}


def test_columns_that_add_up_to_the_reward_are_read_as_its_functions(tmp_path: Path) -> None:
    rows = [
        {"uid": n // 4, "step": 1, "correct": n % 3 == 0, "length": 5 + n * n % 23, "chars": 9 * n % 31}
        for n in range(40)
    ]
    summed = [{**row, "reward": float(row["correct"]) - 0.01 * row["length"]} for row in rows]
    run = read_run(write(tmp_path / "a.jsonl", *summed))
    assert set(run.groups[0].rollouts[0].rewards) == {"reward", "correct", "length"}
    sentence = "'reward' is the weighted sum of other columns, its reward functions: 1 correct - 0.01 length."
    assert sentence in run.source.inferred
    part = read_run(tmp_path / "a.jsonl", naming(reward="correct"))
    assert sentence in part.source.inferred
    assert part.groups[0].rewards == (1.0, 0.0, 0.0, 1.0)
    assert set(part.groups[0].rollouts[0].rewards) == {"reward", "correct", "length"}


@pytest.mark.parametrize("reward", [None, "overall"])
def test_a_verdict_is_part_of_a_sum_and_no_difference(tmp_path: Path, reward: str | None) -> None:
    rows = [{"uid": n // 4, "step": 1, "accuracy": n * n % 3, "format": n % 2, "response": str(n)} for n in range(40)]
    summed = [{**row, "overall": 0.75 * row["accuracy"] + 0.25 * row["format"]} for row in rows]
    run = read_run(write(tmp_path / "a.jsonl", *summed), naming(reward=reward))
    assert (
        "'overall' is the weighted sum of other columns, its reward functions: 0.75 accuracy + 0.25 format."
        in run.source.inferred
    )


def test_initial_weights_are_taken(tmp_path: Path) -> None:
    initial = adapter_folder(tmp_path / "init", base="org/base")
    path = write(tmp_path / "logs" / "a.jsonl", {"uid": 1, "step": 1, "reward": 1.0})
    run = read_run(path, ReadOptions(initial_weights=initial))
    assert [(ref.num_updates, ref.base) for ref in run.weights] == [(0, "org/base")]


CELL = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
CELLS = st.recursive(CELL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
KEYS = st.sampled_from(["step", "uid", "prompt", "reward", "score", "n", "c", "input", "output", "task_id", "passed"])


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.dictionaries(KEYS, CELLS).map(lambda row: json.dumps(row).encode()) | st.binary(max_size=20)),
    st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.parquet", "a.jsonl.gz", "a"]),
)
def test_no_content_makes_a_reader_crash(lines: list[bytes], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"\n".join(lines))
        try:
            run = read_run(path)
        except GradscopeError as error:
            assert error.message  # noqa: PT017 - either outcome is right; any other exception is not
        else:
            assert run.source.num_rows == sum(r is not None for group in run.groups for r in group.rewards) > 0


@pytest.mark.parametrize("extra", ["", 'p3;1;"0,5;\n'], ids=["usual", "row by row"])
@pytest.mark.parametrize("header", ["prompt_id;step;reward", '"prompt_id";"step, of the run";"reward"'])
def test_a_csv_with_semicolons_may_have_decimal_commas(tmp_path: Path, header: str, extra: str) -> None:
    rows = "".join(f"p{prompt};1;{reward}\n" for prompt in (1, 2) for reward in ("0,5", "-1,25", "1", "1,2e"))
    (tmp_path / "log.csv").write_text(f"{header}\n{rows}{extra}")
    column = header.split(";")[1].strip('"')
    run = read_run(tmp_path / "log.csv", naming(step=column))
    rewards = [rollout.reward for group in run.groups for rollout in group.rollouts]
    assert rewards == [0.5, -1.25, 1.0, None] * 2


@pytest.mark.parametrize("first", ["", "sep={}\n", '\ufeff"sep={}"\r\n'])
@pytest.mark.parametrize(("mark", "suffix"), [("\t", ".csv"), ("|", ".tsv"), (";", ".csv"), (",", ".tsv")])
def test_a_table_may_have_another_delimiter(tmp_path: Path, mark: str, suffix: str, first: str) -> None:
    rows = [("prompt_id", "step", "reward"), *((f"p{name}", "1", reward) for name in (1, 2) for reward in ("0.5", "1"))]
    log = tmp_path / f"log{suffix}"
    log.write_text(first.format(mark) + "".join(f"{mark.join(row)}\n" for row in [*rows, ("p3", "1")]))
    run = read_run(log)
    assert [group.rewards for group in run.groups] == [(0.5, 1.0)] * 2
    assert run.source.quarantined.reasons[0].first == f"{log}:{7 if first else 6}"


_POSED = [{"question": f"{i} + 1?", "response": str(sample), "reward": i % 2} for i in range(6) for sample in (0, 1)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
@pytest.mark.parametrize(
    ("templates", "renamed"),
    [("Think.", {}), (["cot", "none"], {}), ("Think.", {"question": "input"}), ("v2", {"question": "problem"})],
)
def test_a_prompt_with_several_questions_is_their_template(
    templates: str | list[str], renamed: dict[str, str], name: str, tmp_path: Path
) -> None:
    posed = [{renamed.get(key, key): cell for key, cell in row.items()} for row in _POSED]
    rows = [{"prompt": templates[i // 2 % 2] if len(templates) == 2 else templates} | q for i, q in enumerate(posed)]
    run = read_run(write_rows(tmp_path / name, rows))
    by_step = read_run(write_rows(tmp_path / f"b{name[1:]}", [q | {"step": i // 4} for i, q in enumerate(rows)]))
    assert [group.rewards for group in run.groups] == [(0, 0), (1, 1)] * 3
    assert [(group.step, group.size) for group in by_step.groups] == [(step, 2) for step in (0, 0, 1, 1, 2, 2)]
    assert any(line.startswith("Several questions have the same 'prompt'") for line in run.source.inferred)


@pytest.mark.parametrize(
    "rows",
    [
        [row | {"prompt": f"Q: {row['question']}", "question": "Which?"} for row in _POSED],
        [row | {"prompt": row["question"], "question": ("Which?", "How?")[i % 2]} for i, row in enumerate(_POSED)],
        [{"prompt": row["question"], "query": f"search {i}", "reward": 1} for i, row in enumerate(_POSED)],
    ],
)
def test_a_prompt_that_tells_questions_apart_is_one(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    assert [group.size for group in read_run(write(tmp_path / "a.jsonl", *rows)).groups] == [2] * 6


def test_a_prompt_that_is_null_throughout_is_what_was_put_in(tmp_path: Path) -> None:
    rows = [  # as NeMo Gym writes them
        {"responses_create_params": {"input": [{"role": "user", "content": row["question"]}], "prompt": None}}
        | {"response": {"prompt": None, "output": [{"type": "message"}]}, "reward": row["reward"]}
        for row in _POSED
    ]
    assert [group.rewards for group in read_run(write(tmp_path / "a.jsonl", *rows)).groups] == [(0, 0), (1, 1)] * 3


@pytest.mark.parametrize("cells", [{"n": 4, "c": 1}, {"responses": ["a", "b", "c", "d"], "rewards": [1, 0, 0, 0]}])
def test_a_template_beside_counts_or_lists_is_no_prompt(cells: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"prompt": {"system": "Think."}, "question": f"{index} + 1?"} | cells for index in range(6)]
    for document in (rows, {"prompt": "cot_v2", "results": rows}):
        run = read_run(write_rows(tmp_path / "a.json", document))
        assert [sorted(group.rewards) for group in run.groups] == [[0, 0, 0, 1]] * 6


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        *(("a.jsonl", "1.0", "0.0"), ("a.jsonl", "True", "False"), ("a.csv", "1.0", "0.0"), ("a.csv", "1e0", " 0 ")),
        *(("a.parquet", "True", "False"), ("a.json", "1", "0")),
    ],
)
def test_numbers_may_be_text_where_all_are(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    rows = [{"step": "global_step_3", "uid": i // 2, "reward": right if i % 4 == 0 else wrong} for i in range(8)]
    path = write_rows(tmp_path / name, rows)
    for rewards_only in (True, False):
        run = read_run(path, rewards_only=rewards_only)
        assert [(group.step, group.rewards) for group in run.groups] == [(3, (1, 0)), (3, (0, 0))] * 2
    if name == "a.jsonl":
        assert set_aside(read_run(write(path, *rows, {**rows[0], "reward": 1}))) == {"the reward is text": 8}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(("a.jsonl", "passed failed"), ("a.jsonl", "C I")),
        *(("a.csv", "PASS timeout"), ("a.parquet", "correct incorrect"), ("a.json", "Yes no")),
    ],
)
def test_verdicts_may_be_words_of_a_column_that_is_named(name: str, words: str, tmp_path: Path) -> None:
    right, wrong = words.split()
    rows = [{"task_id": index // 2, "status": right if index % 4 == 0 else wrong, "note": "n"} for index in range(8)]
    path = write_rows(tmp_path / name, {"results": rows} if name == "a.json" else rows)
    named = naming(reward="status")
    for rewards_only in (True, False):
        run = read_run(path, named, rewards_only=rewards_only)
        assert [group.rewards for group in run.groups] == [(1, 0), (0, 0)] * 2
    assert "status" in refusal(path, "is not a log").partition("--reward-column ")[2]
    rows[0]["status"] = "odd"
    refusal(write_rows(tmp_path / "b.jsonl", rows[:1] + rows[-1:]), "the reward is text, 'odd'", named)
    rows = [row | {"status": "success"} for row in rows]
    assert "--reward-column status" not in refusal(write_rows(tmp_path / "c.jsonl", rows), "is not a log")
