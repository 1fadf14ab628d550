import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations import samples
from gradscope.rollouts.readers.evaluations.shapes import objects_as_lists, prompt_rows, refuse_lone_list
from gradscope.rollouts.run import Run
from tests.conftest import LOGS
from tests.rollouts.readers.lines import naming, refusal, refused, rewards_of, write_lines, write_rows

LEAF = {"scores": [1.0, 0.0], "responses": ["a", "b"]}


def read(tmp_path: Path, *rows: dict[str, Any], rewards_only: bool = False, **options: Any) -> Run:
    return read_run(write_lines(tmp_path / "samples.jsonl", *rows), ReadOptions(**options), rewards_only=rewards_only)


def test_lists_keep_every_number_a_sample_and_its_text(tmp_path: Path) -> None:
    row = {"idx": 3, "question": "q", "code": ["a", "b"], "score": [True, False], "pred_score": [[2.5], [-1.0]]}
    row |= {"k": [1], "tags": ["x", "y"]}
    run = read(tmp_path, row)
    first = run.groups[0].rollouts[0]
    assert (run.groups[0].prompt_id, run.groups[0].step) == ("3", 0)
    assert (first.prompt, first.completion, first.rewards) == ("q", "a", {"score": 1.0, "pred_score": 2.5})
    assert read(tmp_path, row, columns=ColumnNames(reward="pred_score")).groups[0].rewards == (2.5, -1.0)
    with pytest.raises(UsageError, match="There is no list 'grade' of rewards"):
        read(tmp_path, row, columns=ColumnNames(reward="grade"))


@pytest.mark.parametrize(
    "cells",
    [
        {"responses": ["a", "b", "c"], "rewards": [1, 0, 0], "finish_reasons": ["stop", "length", None]},
        {"responses": ["a", "b", "c"], "rewards": [1, 0, 0], "truncated": [False, True, None]},
        {"responses": ["a", "b", "c"], "rewards": [1, 0, 0], "status": ["completed", "truncated", "aborted"]},
        {
            "samples": [
                {"text": "a", "score": 1, "stop_reason": {"type": "stop"}},
                {"text": "b", "score": 0, "stop_reason": {"type": "length"}},
                {"text": "c", "score": 0},
            ]
        },
    ],
)
@pytest.mark.parametrize("extra", [{}, {"note": "x"}])
def test_samples_say_how_they_ended(tmp_path: Path, cells: dict[str, Any], extra: dict[str, Any]) -> None:
    rows = [{"task_id": "t"} | cells, {"task_id": "u"} | cells | extra]
    for rewards_only in (True, False):
        groups = read(tmp_path, *rows, rewards_only=rewards_only).groups
        ends = [[rollout.status for rollout in group.rollouts] for group in groups]
        assert ends == [["completed", "truncated", "unknown"]] * 2


@pytest.mark.parametrize("verdicts", [["pass", "fail"], ["1.0", "0"], ["True", "false"]])
def test_verdicts_in_a_list_may_be_words_and_numbers_text(tmp_path: Path, verdicts: list[str]) -> None:
    row = {"prompt": "q", "responses": ["a", "b"], "rewards": verdicts}
    assert read(tmp_path, row, row | {"prompt": "r"}).groups[0].rewards == (1.0, 0.0)
    named = {("results" if key == "rewards" else key): cell for key, cell in row.items()}
    assert read(tmp_path, named, columns=ColumnNames(reward="results")).groups[0].rewards == (1.0, 0.0)


@pytest.mark.parametrize("samples", [[1.0, 0.5], [{"response": "a", "reward": 1.0}, {"response": "b", "reward": 0.5}]])
def test_prompts_may_lie_below_keys_of_steps(tmp_path: Path, samples: list[Any]) -> None:
    by_step = {f"step_{step}": {f"What is {i}?": samples for i in (1, 2)} for step in (0, 5)}
    run = read_run(write_rows(tmp_path / "a.json", by_step))
    assert [(group.step, group.rewards) for group in run.groups] == [(step, (1.0, 0.5)) for step in (0, 0, 5, 5)]
    assert len({group.prompt_id for group in run.groups}) == 2


def test_lines_of_numbered_files_are_other_groups_where_each_is_a_whole_one(tmp_path: Path) -> None:
    for number in (1, 2):
        for name, rewards in (("groups", [number, 0]), ("trials", [number])):
            rows = [{"trajectories": [{"text": "a", "reward": reward} for reward in rewards]}] * 2
            write_lines(tmp_path / name / f"{number:04d}.jsonl", *rows)
    for name, sizes in (("groups", [2] * 4), ("trials", [2] * 2)):
        columns = ColumnNames(reward="trajectories.reward")
        assert [group.size for group in read_run(tmp_path / name, ReadOptions(columns=columns)).groups] == sizes


def test_lists_of_samples_have_the_steps_of_their_files(tmp_path: Path) -> None:
    for step in (1, 2):
        rows = [{"prompt": f"q{i}", "completions": ["a", "b"], "rewards": [step, i]} for i in (0, 1)]
        write_lines(tmp_path / f"step_{step}" / "rollouts.jsonl", *rows)
    hint = refusal(tmp_path, "holds 2 evaluations")
    (named,) = shlex.split(hint.partition("the steps of one training are named so: ")[2])
    rewards = [(1, (1.0, 0.0)), (1, (1.0, 1.0)), (2, (2.0, 0.0)), (2, (2.0, 1.0))]
    for rewards_only in (True, False):
        run = read_run(named, rewards_only=rewards_only)
        assert [(group.step, group.rewards) for group in run.groups] == rewards
    assert run.source.inferred[-1] == "Rows name no step: each file is one, by the number in its name."


def test_a_status_of_something_else_says_nothing_of_how_samples_ended(tmp_path: Path) -> None:
    row = {"task_id": "t", "responses": ["a", "b"], "passed": [True, False], "status": ["passed", "truncated"]}
    assert {rollout.status for rollout in read(tmp_path, row).groups[0].rollouts} == {"unknown"}


@pytest.mark.parametrize(
    ("cell", "num_samples"),
    [
        ([{"completion": "a", "reward": 1.0}, {"completion": "b", "reward": 0.0}], 2),
        ({"completions": ["a", "b"], "rewards": [1, 0]}, 2),
        ({"samples": [{"text": "a", "score": 1}, {"text": "b", "score": 0}]}, 2),
        ({"completion": "a", "reward": 1.0}, 1),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_the_keys_of_a_document_may_be_the_texts_of_prompts(
    tmp_path: Path, cell: Any, num_samples: int, nested: bool
) -> None:
    prompts = ["What is 2 + 2?", "Name a prime number above ten.", "Solve x^2 = 4"]
    document = dict.fromkeys(prompts, cell) | ({"And now?": []} if isinstance(cell, list) else {})
    run = read_run(write_rows(tmp_path / "samples.json", {"model": "m", "results": document} if nested else document))
    assert [group.rollouts[0].prompt for group in run.groups] == prompts
    assert {group.rewards for group in run.groups} == {(1.0, 0.0)[:num_samples]}
    assert "Prompts are told apart by the text of prompt." in run.source.inferred
    assert (run.groups[0].rollouts[0].completion, len(run.source.quarantined.reasons)) == ("a", isinstance(cell, list))


@pytest.mark.parametrize(
    ("keys", "cells"), [(("AIME 2024", "MATH 500"), {}), (("Who was it?", "What was it?"), {"prompt": "p"})]
)
def test_names_of_benchmarks_are_no_prompts(tmp_path: Path, keys: tuple[str, ...], cells: dict[str, str]) -> None:
    path = write_rows(tmp_path / "samples.json", {key: [{"completion": "a", "reward": 1.0, **cells}] for key in keys})
    refusal(path, r"several lists hold objects with a reward|is not a log")


def test_numbers_of_samples_are_rewards_by_name_or_as_parts_of_the_reward(tmp_path: Path) -> None:
    samples = [
        {
            "rollout": n,
            "text": "?",
            "reward": n % 3 + n * n / 8,
            "fits": n % 3,
            "turns": n * n,
            "tokens": 5 * n % 7,
            "acc": 1,
        }
        for n in range(9)
    ]
    run = read(tmp_path, *({"qid": index, "rollouts": samples} for index in range(4)))
    assert set(run.groups[0].rollouts[0].rewards) == {"reward", "fits", "turns", "acc"}


@pytest.mark.parametrize(
    ("row", "rewards"),
    [
        ({"task_id": 0, "n": 3, "c": 1, "passed": [1, 0, 0]}, (1.0, 0.0, 0.0)),
        ({"task_id": 0, "scores": [0.5, None], "responses": ["a", "b"]}, (0.5, None)),
        ({"idx": 7, "ys": ["x", "y"], "accs": [True, False], "usage_so_far": {"cost": 0.1}}, (1.0, 0.0)),
        ({"question_id": "7", "code_list": ["x", "y"], "graded_list": [True, False], "pass@1": 0.5}, (1.0, 0.0)),
        ({"task_id": 1, "generated_codes": ["a", "b"], "test_results": [1 > 2, True], "passed": True}, (0.0, 1.0)),
        ({"qid": 2, "responses": ["a", "b"], "grading_results": [True, False], "cut": [False, False]}, (1.0, 0.0)),
        ({"qid": 3, "responses": ["a", "b"], "success_flags": [True, False], "is_right": [False, False]}, None),
        ({"task_id": 4, "generated_code": "a", "test_results": [True, False]}, None),
        ({"task_id": 5, "completion": "a", "predicted_words": ["a", "b"], "word_correct": [True, False]}, None),
        ({"task_id": 0, "completions": [{"text": "a", "score": 1.0}, {"text": "b", "score": 0.0}]}, (1.0, 0.0)),
        ({"problem": "p", "correct": 1, "rollout_rewards": [0.0, 1.0], "rollout_texts": ["a", "b"]}, (0.0, 1.0)),
        ({"id": 0, "extracted": ["4", "5", "4"], "n_correct": 2, "n_formatted": 3}, (1.0, 1.0, 0.0)),
        ({"qid": 0, "correct_count": 1, "num_rollouts": 2}, (1.0, 0.0)),
        ({"rollouts": [{"user": "q", "assistant": text, "is_correct": text == "b"} for text in "ab"]}, (0.0, 1.0)),
        ({"question": "q", "m1": {"is_correct": True}, "m2": {"is_correct": None}}, None),
        ({"question": "q", "m1": {"is_correct": True}, "m2": {"is_correct": False}}, (1.0, 0.0)),
    ],
)
def test_the_shapes_of_a_row(tmp_path: Path, row: dict[str, Any], rewards: tuple[float | None, ...] | None) -> None:
    if rewards is None:
        refused("is not a log that gradscope knows", read, tmp_path, row)
    else:
        assert [group.rewards for group in read(tmp_path, row).groups] == [rewards]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"task_id": 1, "n": 3, "c": 2, "passed": [1, 0, 0]}, "n and c contradict the list of samples"),
        ({"task_id": 1, "passed": [], "responses": []}, "the list of samples is empty"),
        ({"task_id": 1}, "the row holds no samples with a reward"),
    ],
)
def test_a_row_that_contradicts_itself_is_set_aside(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    good = [{"task_id": f"good{number}", "n": 2, "c": 1} for number in range(2)]
    run = read(tmp_path, *good, row)
    assert [entry.reason for entry in run.source.quarantined.reasons] == [reason]
    assert run.source.quarantined.reasons[0].first.endswith("samples.jsonl:3")


SCORED = [{"solution": "a", "score": 0.5}, {"solution": "b", "score": 0.7}]
PASSED = [{"solution": "a", "passed": True, "fast": 1}, {"solution": "b", "passed": False, "fast": 0}]


@pytest.mark.parametrize("name", ["ref", "reference_solutions", "gold", "canonical", "Expected", "few_shot"])
def test_solutions_that_are_not_the_policys_are_no_samples(tmp_path: Path, name: str) -> None:
    run = read(tmp_path, *({"task_id": n, "results": PASSED if n else [], name: SCORED} for n in range(3)))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0)] * 2
    assert run.source.quarantined.reasons[0].reason == "the row holds no samples with a reward"


@pytest.mark.parametrize(
    "name",
    [
        *("options", "choices", "answer_options", "Alternatives", "mc_choice", "distractors"),
        *("retrieved", "retrieved_docs", "top_passages", "contexts", "sources", "evidence"),
    ],
)
@pytest.mark.parametrize(("entry", "outer"), [("is_correct", "rows"), ("score", "document")])
def test_what_a_question_comes_with_is_no_sample(tmp_path: Path, name: str, entry: str, outer: str) -> None:
    offered = [[{"id": c, "text": c, entry: int(i == right)} for i, c in enumerate("ABCD")] for right in range(4)]
    rows = [{"task_id": f"p{i}", "question": f"q{i}", name: answers} for i, answers in enumerate(offered)]
    path = write_rows(tmp_path / "a.json", rows if outer == "rows" else {"name": "exam", "questions": rows})
    refusal(path, "is not a log that gradscope knows")
    assert read(tmp_path, *rows, columns=ColumnNames(reward=f"{name}.{entry}")).groups[0].rewards == (1, 0, 0, 0)


def test_of_two_lists_of_samples_one_has_to_be_named(tmp_path: Path) -> None:
    row = {"task_id": 1, "base": PASSED, "tuned": SCORED}
    refused(r"several lists .* 'base', 'tuned': --reward-column LIST\.ENTRY", read, tmp_path, row)
    for named, rewards in (("tuned.score", (0.5, 0.7)), ("passed", (1.0, 0.0)), ("base.fast", (1.0, 0.0))):
        assert read(tmp_path, row, columns=ColumnNames(reward=named)).groups[0].rewards == rewards


@pytest.mark.parametrize("outer", [lambda prompts: {"eval": prompts}, lambda prompts: list(prompts.values())])
def test_a_prompt_without_samples_beside_others_is_set_aside(tmp_path: Path, outer: Callable[..., Any]) -> None:
    prompts = {str(n): {"task_id": n, "results": PASSED if n else [], "seconds": 1.5} for n in range(5)}
    run = read_run(write_rows(tmp_path / "a.json", {"config": {"results": []}, "of": outer(prompts)}))
    assert [len(group.rewards) for group in run.groups] == [2] * 4
    (reason,) = run.source.quarantined.reasons
    assert (reason.reason, reason.num_rows, reason.num_rollouts) == ("the prompt has no samples", 1, 2)


def test_rows_of_one_prompt_are_one_group_unless_policies_are_named(tmp_path: Path) -> None:
    counts = [{"task_id": task, "n": 2, "c": 1} for task in (0, 1, 1)]
    assert [group.rewards for group in read(tmp_path, *counts).groups] == [(1.0, 0.0), (1.0, 0.0, 1.0, 0.0)]
    row = {"dataset": "y", "i": 4, "scores": [1.0, 0.0]}
    rows = [row, *({"model": m, "category": "x", **row} for m in "ab")]
    run = read(tmp_path, *rows, columns=ColumnNames(reward="scores"))
    assert [group.group_id for group in run.groups] == ["y/4", "a/x/y/4", "b/x/y/4"]
    assert {group.prompt_id for group in run.groups} == {"y/4", "x/y/4"}


def test_what_a_policy_lists_are_its_prompts_and_with_numbers_for_ids_its_samples(tmp_path: Path) -> None:
    def runs(*ids: Any) -> dict[str, Any]:
        verdicts = [{"id": name, "output": "x", "passed": index == 0} for index, name in enumerate(ids)]
        return {"tests": [{"id": name} for name in ids], "runs": [{"model": m, "samples": verdicts} for m in "ab"]}

    run = read(tmp_path, runs("t1", "t2", "t3"))
    named = [(group.group_id, group.prompt_id, *group.rewards) for group in run.groups]
    assert named[2:4] == [("a/t3", "t3", 0.0), ("b/t1", "t1", 1.0)]
    assert [group.rewards for group in read(tmp_path, runs(0, 1)).groups] == [(1.0, 0.0)] * 2


def test_objects_with_right_answers_of_their_own_are_no_samples_of_one_prompt(tmp_path: Path) -> None:
    listed = [{"index": i, "gt_answer": str(i // 2), "completion": "x", "reward": float(i == 1)} for i in range(4)]
    path = write_rows(tmp_path / "eval.json", {"failures": [{"gt": "0"}], "items": listed})
    hint = refusal(path, "is not a log that gradscope knows")
    assert "--reward-column reward --prompt-column index, if this column of 'items'" in hint
    for named in ("reward", "items.reward"):
        refusal(path, "list 'items' has answers to several prompts", naming(reward=named), error=UsageError)
        run = read_run(path, naming(reward=named, prompt="index"))
        assert [group.rewards for group in run.groups] == [(0.0,), (1.0,), (0.0,), (0.0,)]
    same = [row | {"gt_answer": "4"} for row in listed]
    assert [group.rewards for group in read(tmp_path, {"items": same}).groups] == [(0.0, 1.0, 0.0, 0.0)]


@pytest.mark.parametrize("name", ["items", "details", "per_item", "per_trajectory"])
@pytest.mark.parametrize("counts", [("n", "n_correct"), ("total", "correct")])
def test_items_win_over_totals_beside_them(tmp_path: Path, name: str, counts: tuple[str, str]) -> None:
    def split(i: int) -> dict[str, Any]:
        listed = [{"idx": n, "correct": n < i, "sha256": f"{i}{n}"} for n in range(3)]
        return {**dict(zip(counts, (3, i), strict=True)), "relaxed_accuracy": i / 3, name: listed}

    document = {"model": "m", "splits": {"human": split(1), "made": split(2)}, "overall": {"n": 6, "n_correct": 3}}
    run = read_run(write_lines(tmp_path / "a.json", document))
    assert [group.rewards for group in run.groups] == [(1,), (0,), (0,), (1,), (1,), (0,)]
    problems = {f"p{i}": {"n": 3, "c": i, "samples": split(i)[name]} for i in (1, 2)}
    run = read_run(write_lines(tmp_path / "a.json", {"problems": problems}))
    assert [group.rewards for group in run.groups] == [(1, 0, 0), (1, 1, 0)]  # numbered samples of as many prompts
    document["overall"] |= {"n": 60}  # of which these are examples
    refusal(write_lines(tmp_path / "a.json", document), "totals of evaluations")


def test_a_list_that_is_named_makes_each_object_of_a_document_a_prompt(tmp_path: Path) -> None:
    problems = [{"id": i, "results": [True, i > 1, False]} for i in range(3)]
    path = write_rows(tmp_path / "a.json", {"model": "m", "problems": problems})
    groups = read_run(path, ReadOptions(columns=ColumnNames(reward="results"))).groups
    assert [(group.prompt_id, group.rewards) for group in groups] == [(str(i), (1, i > 1, 0)) for i in range(3)]


def test_rows_without_identity_are_identified_by_their_lines(tmp_path: Path) -> None:
    run = read(tmp_path, *({"scores": [float(n)], "responses": ["a"]} for n in (1, 0)))
    assert [group.prompt_id for group in run.groups] == ["1", "2"]
    assert run.source.inferred[0] == "Prompts are told apart by their numbers."


@pytest.mark.parametrize(
    ("rows", "prompt_ids", "by"),
    [
        ([{"HumanEval/0": {"n": 4, "c": 1}, "HumanEval/1": {"n": 4, "c": 4}}], ["HumanEval/0", "HumanEval/1"], "keys"),
        ([{"results": [{"n": 4, "c": 1}, {"n": 4, "c": 4}]}], ["results/0", "results/1"], "numbers"),
        ([{"x": {"n": 4, "c": 1}}, {"x": {"n": 4, "c": 4}}], ["x", "2/x"], "keys"),
    ],
)
def test_parts_are_named_by_their_keys(
    tmp_path: Path, rows: list[dict[str, Any]], prompt_ids: list[str], by: str
) -> None:
    run = read(tmp_path, *rows)
    assert [group.prompt_id for group in run.groups] == prompt_ids
    assert [sum(filter(None, group.rewards)) for group in run.groups] == [1, 4]
    assert run.source.inferred[0] == f"Prompts are told apart by their {by}."


TOTALS = {"n": 3, "correct": 1, "accuracy": 0.33}


def test_totals_of_an_evaluation_are_no_counts_of_one_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "reduced_groups", None)  # nothing is made of them, however many they count
    assert "for each sample or prompt" in refused("names no prompt", read, tmp_path, TOTALS)
    with pytest.raises(InputError, match=r"counts 3 samples and lists 1 of them in 'per_q'"):
        read(tmp_path, {**TOTALS, "per_q": [{"question": "a", "correct": True}]})
    for totals in (
        {"accuracy": 0.6, "total": 4},
        {"summary": TOTALS | {"n": 4}},
        {"num_samples": 4, "mean_reward": 0.5},
    ):
        shown = {"examples": [{"question": name, "response": "?", "correct": True} for name in "abc"]}
        for document in (totals | shown, {"evals": [{"model": name} | totals | shown for name in "ab"]}):
            refusal(write_rows(tmp_path / "a.json", document), r"counts 4 samples and lists 3 of them in 'examples'")
    refusal(write_rows(tmp_path / "a.json", {"truncated": True} | shown), "is truncated: the list 'examples'")
    slices = [{"total": 4 * n, "correct": n, "accuracy": 0.25} for n in range(1, 20)]
    refused("holds 19 pairs of counts and names no prompt", read, tmp_path, {"by_level": slices})
    with pytest.raises(InputError, match="holds 10 pairs of counts and names no prompt"):
        read(tmp_path, {"runs": [dict.fromkeys(("pre_eval", "eval_after"), slices[0])] * 5})
    with pytest.raises(InputError, match="holds 5 pairs of counts and names no prompt"):
        read(tmp_path, {"by_repository": {name: {"passed": 1, "total": i} for i, name in enumerate("abcde", start=1)}})
    by_type = {"math": {"n": 8, "correct": 3}, "code": {"n": 4, "correct": 1}}
    with pytest.raises(InputError, match="holds 2 pairs of counts and names no prompt"):
        read(tmp_path, {name: {"n": 12, "correct": 4, "by_type": by_type} for name in ("cot", "zero_shot")})
    monkeypatch.undo()
    problems = [{"problem_idx": i, **counts} for i, counts in enumerate(slices)]
    assert read(tmp_path, *problems).source.inferred[0] == "Prompts are told apart by problem_idx."
    assert read(tmp_path, {**TOTALS, "task_id": "x"}).groups[0].size == 3
    columns = ColumnNames(num_samples="n", num_correct="correct")
    assert read(tmp_path, TOTALS, columns=columns).groups[0].size == 3


@pytest.mark.parametrize(
    ("num", "n", "share", "is_totals"),
    [(4, 50, 0.26, True), (4, 50, 26.0, True), (4, 50, 0.5, False), (60, 50, 0.26, False), (2, 50, 0.5, True)],
)
@pytest.mark.parametrize("as_rows", [True, False])
def test_totals_are_recognized(tmp_path: Path, num: int, n: int, share: float, is_totals: bool, as_rows: bool) -> None:
    pairs = {f"step_{index}": {"n": n, "correct": 13, "accuracy": share} for index in range(num)}
    rows = [{"revision": name, **pair} for name, pair in pairs.items()] if as_rows else [pairs]
    if is_totals:
        refused(f"holds {num} pairs of counts and names no prompt", read, tmp_path, *rows)
    for columns in (ColumnNames(num_samples="n", num_correct="correct"), ColumnNames())[: 1 if is_totals else 2]:
        assert [group.size for group in read(tmp_path, *rows, columns=columns).groups] == [n] * num


PER_QUESTION = [{"question": text, "answer": "4", "correct": text == "a"} for text in "abc"]


@pytest.mark.parametrize(
    ("document", "options", "rewards"),
    [
        ({**TOTALS, "per_q": PER_QUESTION}, {}, {"a": [1], "b": [0], "c": [0]}),
        ({"config": {"n": 9}, "results": [*PER_QUESTION, PER_QUESTION[0]]}, {}, {"a": [1, 1], "b": [0], "c": [0]}),
        (
            {
                "summary": {"by_type": {"x": {"em": 0.5, "count": 2}, "y": {"em": 1, "count": 1}}},
                "per_item": PER_QUESTION,
            },
            {"columns": ColumnNames(reward="correct", prompt="question")},
            {"a": [1], "b": [0], "c": [0]},
        ),
        (
            {"model": "m", "cases": [{"id": i, "ok": i == 2} for i in (1, 2)]},
            {"columns": ColumnNames(reward="ok", prompt="id")},
            {"1": [0], "2": [1]},
        ),
    ],
)
def test_the_one_list_of_samples_in_a_document_is_read(
    tmp_path: Path, document: dict[str, Any], options: dict[str, Any], rewards: dict[str, list[float]]
) -> None:
    run = read(tmp_path, document, **options)
    by_prompt: dict[str, list[float | None]] = {}
    for group in run.groups:
        by_prompt.setdefault(group.rollouts[0].prompt, []).extend(group.rewards)
    assert by_prompt == rewards
    assert "of a document" in run.source.recognized


@pytest.mark.parametrize(
    "name", ["failures", "errors", "wrong_cases", "correct", "success_examples", "failed", "solved"]
)
def test_rollouts_that_were_chosen_by_their_outcome_are_not_taken_for_all(tmp_path: Path, name: str) -> None:
    chosen = [{"question": text, "response": "4", "correct": name[:2] in ("co", "su", "so")} for text in "abc"]
    assert "'results'" in read(tmp_path, {"results": PER_QUESTION, name: chosen}).source.recognized
    for single in ({name: chosen}, {name: chosen, "passed": chosen}):
        refused(f"lists rollouts that were chosen by how they ended, in '{name}'", read, tmp_path, single)
    assert len(read(tmp_path, {name: chosen}, columns=ColumnNames(reward="correct")).groups) == 3
    assert len(read(tmp_path, {name: PER_QUESTION}).groups) == 3


def test_a_verdict_beside_the_samples_of_a_prompt_is_none_of_one(tmp_path: Path) -> None:
    prompts = [{"id": i, "correct": True, "num_correct": i, "generations": [{"pred": 4}] * 3} for i in (1, 3)]
    assert [group.rewards for group in read(tmp_path, {"results": prompts}).groups] == [(1, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize("samples", [{"n": 2, "c": 1}, {"responses": ["a", "b"], "scores": [1.0, 0.0]}])
@pytest.mark.parametrize(
    ("name", "question", "num_prompts", "policies"),
    [("task", "", 600, {None}), ("seed", "", 600, {None}), ("checkpoint", "same", 300, {"a", "b"})],
)
def test_the_same_ids_far_below_are_those_of_another_benchmark_policy_or_question(
    samples: dict[str, Any], name: str, question: str, num_prompts: int, policies: set[str | None], tmp_path: Path
) -> None:
    rows = [{"idx": i, name: x, "question": f"{question or x} {i} what?"} | samples for x in "ab" for i in range(300)]
    run = read(tmp_path, *rows)
    assert {tuple(sorted(group.rewards)) for group in run.groups} == {(0.0, 1.0)}
    assert len({group.prompt_id for group in run.groups}) == num_prompts
    assert {group.rollouts[0].policy for group in run.groups} == policies


@pytest.mark.parametrize("name", ["results", "eval_results", "details", "per_item", "per_trajectory"])
def test_numbered_results_under_the_keys_of_settings_are_no_samples_of_one_prompt(tmp_path: Path, name: str) -> None:
    numbered = [{"id": index, "response": "4", "correct": index > 1} for index in range(3)]
    with pytest.raises(InputError, match="rows lie below the keys 'greedy'"):
        read(tmp_path, {key: {"base": {name: numbered}, "tuned": {name: numbered}} for key in ("greedy", "sampled")})
    documents = {"a": {"samples": numbered}, "b": {"samples": numbered}}
    assert [group.rewards for group in read(tmp_path, documents).groups] == [(0, 0, 1)] * 2


@pytest.mark.parametrize(
    "document",
    [
        {name: {"accuracy": 0.5, "correct": 2, "total": 4, "shown": PER_QUESTION} for name in ("base", "tuned")},
        {"first": PER_QUESTION, "second": PER_QUESTION},
        {"metrics": {"by_kind": {"a": {"accuracy": 0.5, "recall": 1}, "b": {"accuracy": 1, "recall": 0.5}}}},
        {"cases": [{"question": "a", "grade": 1}]},
    ],
)
def test_documents_with_totals_or_several_lists_are_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"is not a log that gradscope knows\. (Its|The list 'cases' in it has objects whose)"
    ):
        read(tmp_path, document)


def test_prompts_that_a_document_sorts_again_count_once(tmp_path: Path) -> None:
    prompts = [{"index": i, "question": f"q{i}", "n": 4, "c": i} for i in range(4)]
    tenths = [{"decile": i, "questions": prompts[2 * i : 2 * i + 2]} for i in (0, 1)]
    run = read(tmp_path, {"by_prompt": prompts, "by_decile": tenths})
    assert [group.rewards.count(1.0) for group in run.groups] == [0, 1, 2, 3]
    assert {group.size for group in run.groups} == {4}
    other = [{**prompts[0], "c": 4}, prompts[1]]
    sizes = [group.size for group in read(tmp_path, {"first": prompts, "second": other}).groups]
    assert sizes == [4] * 6  # of two policies


def test_a_list_of_verdicts_a_prompt_in_a_document_is_named(tmp_path: Path) -> None:
    document = {"n": 2, "results": [{"question": q, "answers": ["x", "y"], "correctness": [True, False]} for q in "ab"]}
    refused("a list 'correctness' in a row", read, tmp_path, document)
    run = read(tmp_path, document, columns=ColumnNames(reward="correctness"))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (1.0, 0.0)]


@pytest.mark.parametrize("is_document", [True, False])
def test_samples_that_did_not_come_to_a_verdict_failed(is_document: bool, tmp_path: Path) -> None:
    def row(task: int, *compiled: int) -> dict[str, Any]:
        lists = {"compiled": [{"sample_index": sample, "ok": sample in compiled} for sample in range(3)]}
        return {"task_id": task, "n": 3} | lists | {"tests": [{"sample_index": i, "correct": i < 2} for i in compiled]}

    rows = [row(0, 0, 1, 2), row(1, 1), row(2), row(3, 0, 2)]
    run = read(tmp_path, *([{"results": rows}] if is_document else rows))
    assert sorted(sum(group.rewards) for group in run.groups) == [0, 1, 1, 2]
    assert {group.size for group in run.groups} == {3}
    assert "failures without a verdict" in run.source.recognized
    unnumbered = [{**row, "n": 8} for row in rows]  # the size of a problem, say
    assert sorted(group.size for group in read(tmp_path, *unnumbered).groups) == [1, 2, 3]


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (("prompts", "sampled_texts", "grading"), {"reward": "grading", "prompt": "prompts"}),
        (("prompts", "sampled_texts", "grading"), {"reward": "grading"}),
        (("questions", "responses", "rewards"), {"reward": "rewards"}),
        (("questions", "responses", "rewards"), {"prompt": "questions"}),
        (("tasks", "texts", "rewards"), {"prompt": "tasks"}),
        (("tasks", "texts", "verdict_each"), {"prompt": "tasks", "reward": "verdict_each"}),
    ],
)
def test_lists_with_a_cell_a_prompt_are_rows_under_the_names_that_were_given(
    names: tuple[str, ...], named: dict[str, str], tmp_path: Path
) -> None:
    cells = (["1 + 1?", "2 + 2?", "3 + 3?"], ["a", "b", "c"], [True, False, True])
    run = read(tmp_path, dict(zip(names, cells, strict=True)) | {"model": "m"}, columns=ColumnNames(**named))
    assert [group.rewards for group in run.groups] == [(1,), (0,), (1,)]
    same = dict(zip(names, (["1 + 1?"] * 3, *cells[1:]), strict=True))
    if "reward" in named:
        assert [group.rewards for group in read(tmp_path, same, columns=ColumnNames(**named)).groups] == [(1, 0, 1)]


def test_lists_of_verdicts_by_the_keys_of_many_prompts(tmp_path: Path) -> None:
    scored = {f"p{index}": [True, index % 2] for index in range(10)}
    run = read(tmp_path, {"scored": scored, "texts": {key: ["a", "b"] for key in scored}, "pass@1": 0.75})
    assert [group.rewards for group in run.groups] == [(1.0, float(index % 2)) for index in range(10)]
    for other in ({"p9": [0.5, 1]}, {"p9": []}, {"correct": [1, 0]}):
        assert not list(prompt_rows(scored | other))
    assert not list(prompt_rows({key: scored[key] for key in list(scored)[1:]}))


@pytest.mark.parametrize(
    ("cell", "num", "is_read"),
    [
        ({"pred": "1", "answer": "2", "correct": True}, 10, True),
        ({"prediction": "1", "is_correct": False}, 12, True),
        ({"patch_exists": True, "resolved": True}, 12, True),  # SWE-bench's report of each instance
        ({"pred": "1", "correct": True}, 9, False),
        ({"expected": "1", "passed": True}, 12, False),  # tests
        ({"pred": "1", "correct": 0.5}, 12, False),
        ({"pred": "1", "seconds": 2}, 12, False),
    ],
)
def test_verdicts_by_the_keys_of_many_prompts(tmp_path: Path, cell: dict[str, Any], num: int, is_read: bool) -> None:
    path = write_rows(tmp_path / "a.json", {"accuracy": 50.0, "details": {str(index): cell for index in range(num)}})
    if not is_read:
        refusal(path, "not a log that gradscope knows")
        return
    run = read_run(path)
    assert (len(run.groups), run.groups[0].rewards) == (num, (float(cell.get("correct", cell.get("resolved", False))),))


@pytest.mark.parametrize(
    ("name", "outer", "is_read"),
    [
        ("instance_pytest-dev__pytest-{}-vnan", [], True),  # as SWE-bench Pro writes them
        ("HumanEval/{}", [], True),
        ("HumanEval/{}", ["checks"], False),
        ("criterion_{}", [], False),
        ("tests/a.py::test_{}", [], False),
        ("use_part_{}", [], False),
    ],
)
def test_truth_values_under_ids_of_prompts_are_verdicts(
    tmp_path: Path, name: str, outer: list[str], is_read: bool
) -> None:
    verdicts = {name.format(index): index == 3 for index in range(10)}
    path = write_lines(tmp_path / "eval_results.json", dict.fromkeys(outer, verdicts) or verdicts)
    if is_read:
        assert [group.rewards for group in read_run(path).groups] == [(float(index == 3),) for index in range(10)]
    else:
        refusal(path, "is not a log that gradscope knows")


@pytest.mark.parametrize("name", ["astropy__astropy-{}", "Mbpp/{}"])
def test_verdicts_under_the_ids_of_prompts_may_be_those_of_several_runs(tmp_path: Path, name: str) -> None:
    runs = {f"run{run}": {name.format(index): int(index % 3 > run) for index in range(12)} for run in range(2)}
    table = reward_table(read(tmp_path, runs).groups)
    assert (table.policies, table.policy is not None and table.policy.tolist()) == (
        ("run0", "run1"),
        [0] * 12 + [1] * 12,
    )
    assert (table.reward[:12].sum(), table.reward[12:].sum()) == (8, 4)
    by_condition = {"base": runs, "masked": {f"masked_{run}": verdicts for run, verdicts in runs.items()}}
    table = reward_table(read(tmp_path, by_condition).groups)
    assert (table.policies, table.reward.sum()) == (("run0", "run1", "masked_run0", "masked_run1"), 24)


def test_totals_name_the_list_that_may_hold_the_samples(tmp_path: Path) -> None:
    rows = [{"i": index, "got": str(index), "correct": index < 3} for index in range(4)]
    path = write_rows(tmp_path / "gsm8k.json", {"suite": "gsm8k", "n": 4, "correct": 3, "samples": rows})
    hint = refusal(path, "holds one pair of counts")
    assert (
        hint == "If the rows of 'samples' are samples: --reward-column correct --prompt-column NAME, one of 'i', 'got'."
    )
    run = read_run(path, naming(reward="correct", prompt="i"))
    assert [group.rewards for group in run.groups] == [(1,), (1,), (1,), (0,)]


def test_ids_of_what_was_resolved_alone_do_not_say_of_how_many(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "results.json", {"no_generation": [], "no_logs": [], "resolved": ["a-1", "b-2"]})
    assert "SWE-bench's report" in refusal(path, "lists 'resolved' and not all that were asked")


def test_a_named_verdict_of_a_row_counts_where_lists_deep_in_it_hold_its_criteria(tmp_path: Path) -> None:
    grading = {"parts": [{"pass": True, "score": 0.5}]}
    rows = [{"id": str(i), "task_id": i // 2, "success": i == 1, "score": 0.5, "grading": grading} for i in range(4)]
    run = read_run(write_lines(tmp_path / "graded.jsonl", *rows), naming(reward="success"))
    assert [group.rewards for group in run.groups] == [(0, 1), (0, 0)]


@pytest.mark.parametrize("missing", [[], ["d"]])
def test_a_report_of_swe_bench_lists_ids_and_one_of_terminal_bench_trials(tmp_path: Path, missing: list[str]) -> None:
    ids = {"submitted_ids": ["a", "b", "c"], "resolved_ids": ["b"], "error_ids": ["c"], "incomplete_ids": missing}
    run = read(tmp_path, {"total_instances": 4, "resolved_instances": 1, **ids, "schema_version": 2})
    assert [(group.prompt_id, group.rewards) for group in run.groups] == [("a", (0,)), ("b", (1,)), ("c", (0,))]
    assert ("without 1 that were not run" in run.source.recognized) is bool(missing)
    run = read(tmp_path, {**ids, "completed_ids": ["b"]})  # "a" was submitted, and not asked for
    assert [(group.prompt_id, group.rewards) for group in run.groups] == [("b", (1,)), ("c", (0,))]
    assert f"without {1 + len(missing)} that were not run" in run.source.recognized
    verdicts: dict[str, bool | None] = {"t.1-of-2": False, "t.2-of-2": True, "u.1-of-2": None}
    trials = [{"trial_name": name, "task_id": name[0], "is_resolved": ok} for name, ok in verdicts.items()]
    run = read(tmp_path, {"results": trials, "pass_at_k": {}, "n_resolved": 1, "resolved_ids": ["t"], "accuracy": 0.5})
    assert [group.rewards for group in run.groups] == [(0, 1), (0,)]  # one without a verdict failed, as in its accuracy
    assert any("as in Terminal-Bench" in sentence for sentence in run.source.inferred)
    run = read(
        tmp_path, *({"task_id": name[0], "is_resolved": bool(ok)} for name, ok in verdicts.items()), {"task_id": 1}
    )
    assert run.source.quarantined.num_rows == 1  # that says nothing of a verdict
    assert not any("as in Terminal-Bench" in sentence for sentence in run.source.inferred)


def test_a_list_of_counts_that_is_named_has_a_prompt_each(tmp_path: Path) -> None:
    columns = ColumnNames(num_samples="n", num_correct="c")
    run = read(tmp_path, {"step_500": {"n": 2, "c": [1, 3, 2]}, "other": {"c": [1]}}, columns=columns)
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (1.0, 1.0)]
    assert [entry.num_rows for entry in run.source.quarantined.reasons] == [1, 1]
    for name in ("per_question_correct", "num_correct", "correct_counts"):
        run = read(tmp_path, {"step_500": {"n_samples": 2, "pass@1": 0.75, name: [1, 3, 2]}})
        assert [group.rewards for group in run.groups] == [(1.0, 0.0), (1.0, 1.0)]
        assert run.source.quarantined.num_rows == 1
    for row in ({"num_correct": [1, 2]}, {"n": 2, "num_correct": [1, 2], "n_passed": [1, 2]}, {"n": 2, "correct": [1]}):
        refused(r"not a log that|no usable rows|is not known", read, tmp_path, row)


def test_a_named_column_tells_prompts_apart(tmp_path: Path) -> None:
    rows = [{"idx": n, "topic": "sums", "scores": [1.0], "responses": ["a"]} for n in range(2)]
    run = read(tmp_path, *rows, columns=ColumnNames(group="topic"))
    assert {group.prompt_id: group.rewards for group in run.groups} == {"sums": (1.0, 1.0)}
    assert run.source.inferred == ("Prompts are told apart by topic.",)
    with pytest.raises(InputError, match=r"has no usable rows; set aside: 2, first .*: topik is missing"):
        read(tmp_path, *rows, columns=ColumnNames(group="topik"))


def test_our_own_held_out_samples(tmp_path: Path) -> None:
    rows = [
        {"prompt_id": p, "prompt": "1+1", "answer": "2", "completion": "x", "reward": r, "correct": r == 1.0}
        for p, r in (("a", 1.0), ("a", 0.2), ("b", 0.0))
    ]
    run = read(tmp_path, *rows)
    assert run.source.format == "samples"
    assert {group.prompt_id: group.rewards for group in run.groups} == {"a": (1.0, 0.2), "b": (0.0,)}
    assert run.groups[0].rollouts[1].rewards == {"reward": 0.2, "correct": 0.0}


@pytest.mark.parametrize("name", ["samples_lists.jsonl", "samples_counts.csv", "samples_policies.jsonl", "trials.json"])
def test_samples_may_be_counted_where_only_rewards_are_looked_at(name: str) -> None:
    by_row, bare = read_run(LOGS / name), read_run(LOGS / name, rewards_only=True)
    for full, counted in zip(by_row.groups, bare.groups, strict=True):
        assert (counted.group_id, counted.prompt_id, counted.size) == (full.group_id, full.prompt_id, full.size)
        rewards = [[(r.reward, sorted(r.rewards.items()), r.policy) for r in g.rollouts] for g in (full, counted)]
        assert sorted(rewards[0], key=repr) == sorted(rewards[1], key=repr)
    assert (bare.source.num_rows, bare.source.quarantined) == (by_row.source.num_rows, by_row.source.quarantined)


def test_counted_samples_are_one_object_and_those_that_are_none_are_set_aside(tmp_path: Path) -> None:
    strange = {"task_id": "t", "passed": [True, False, True, None, "x", "x", {}, [1, 2]], "code": ["a"] * 8}
    full, bare = read(tmp_path, strange), read(tmp_path, strange, rewards_only=True)
    assert bare.source.quarantined == full.source.quarantined
    (group,) = read(tmp_path, {"task_id": "t", "n": 300, "c": 100}, rewards_only=True).groups
    assert (group.size, sum(reward or 0.0 for reward in group.rewards)) == (300, 100.0)
    assert len({id(rollout) for rollout in group.rollouts}) == 2


def test_a_list_of_which_nothing_says_what_it_holds_is_refused_with_the_option_that_says_so(tmp_path: Path) -> None:
    rows = [{"task_id": n, "passed": [True, False]} for n in range(3)]
    hint = refused("a list 'passed' in a row, and no list of as many responses", read, tmp_path, *rows)
    assert hint == "If each entry is a sample, name the list: --reward-column passed"
    assert read(tmp_path, *rows, columns=ColumnNames(reward="passed")).source.num_rows == 6
    refuse_lone_list(tmp_path, [{"score": 0.1, "responses": ["a"]}, {"scores": [1]}])  # no more than half of the rows


def test_criteria_of_one_response_are_not_its_samples(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "response": text, "reward": 1.0, "scores": [0.1, 0.2, 0.3]} for text in "ab"]
    assert [group.rewards for group in read(tmp_path, *rows).groups] == [(1.0, 1.0)]


@pytest.mark.parametrize("name", ["steps", "turns", "trajectory", "messages", "tool_calls"])
@pytest.mark.parametrize(
    ("policy", "cells"), [({}, {}), ({"policy": "a"}, {"messages": [{"role": "user", "content": "x"}]})]
)
def test_turns_of_an_episode_are_not_its_samples(
    name: str, policy: dict[str, Any], cells: dict[str, Any], tmp_path: Path
) -> None:
    turns = [{"step": turn, "action": "go", "reward": 0.1 * turn, "success": True, **cells} for turn in (1, 2, 3)]
    rows = [{"task_id": "t", "total_reward": reward, "solved": 1, name: turns} | policy for reward in (1.0, 0.0)]
    assert [group.rewards for group in read(tmp_path, *rows).groups] == [(1.0, 0.0)]
    named = read(tmp_path, *rows, columns=ColumnNames(reward="solved"))
    assert [group.rewards for group in named.groups] == [(1.0, 1.0)]
    assert [group.rewards for group in read_run(write_rows(tmp_path / "one.json", rows[0])).groups] == [(1.0,)]


@pytest.mark.parametrize("name", ["trace", "turns", "edit_trajectory"])
def test_turns_with_prompts_of_their_own_are_those_of_the_episode(name: str, tmp_path: Path) -> None:
    def turns(num: int) -> list[dict[str, Any]]:
        return [{"prompt": f"{i}", "completion": "x", "reward": float(i), "correct": i > 0} for i in range(num)]

    rows = [{"task_id": f"t{i // 2}", "correct": i % 2 == 0, name: turns(1 + i % 2)} for i in range(6)]
    path = write_lines(tmp_path / "a.json", {"rows": rows})
    assert [group.rewards for group in read_run(path).groups] == [(1.0, 0.0)] * 3


def test_numbered_verdicts_are_rows_and_not_counts(tmp_path: Path) -> None:
    rows = [{"task_id": task, "n": n, "correct": int(n > task)} for task in (1, 2) for n in (1, 2, 3, 4)]
    run = read(tmp_path, *rows)
    assert [group.rewards for group in run.groups] == [(0.0, 1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)]
    named = read(tmp_path, *rows, columns=ColumnNames(num_samples="n", num_correct="correct"))
    assert [group.size for group in named.groups] == [10, 10]


@pytest.mark.parametrize(
    "row",
    [
        {"n": 4, "correct": 3},
        {"total": "4", "num_correct": 3.0},
        {"num_samples": 4, "passed": 3},
        {"n_samples": 4, "n_passed": 3},
    ],
)
def test_tables_of_counts_are_known_by_their_names(tmp_path: Path, row: dict[str, Any]) -> None:
    run = read(tmp_path, *({"task_id": task, **row} for task in range(3)))
    assert run.source.recognized == "samples of prompts as counts"
    assert [group.rewards for group in run.groups] == [(1.0, 1.0, 1.0, 0.0)] * 3


@pytest.mark.parametrize("nested", [False, True])
def test_rows_that_name_their_step_are_groups_of_it(tmp_path: Path, nested: bool) -> None:
    rewards = [[1, 0], [1, 1], [0, 0], [0, 1]]
    rows: list[dict[str, Any]] = [
        {"global_step": index // 2 + 1, "prompt": "q", "completions": ["a", "b"], "rewards": values}
        if not nested
        else {"global_step": index // 2 + 1, "prompt": "q", "samples": [{"text": "a", "reward": v} for v in values]}
        for index, values in enumerate(rewards)
    ]
    rows = [{**row, "prompt": f"q{index % 2}"} for index, row in enumerate(rows)]
    run = read(tmp_path, *rows, {**rows[0], "global_step": "first"})
    assert [(group.step, [*group.rewards]) for group in run.groups] == [*zip((1, 1, 2, 2), rewards, strict=True)]
    assert [value.reason for value in run.source.quarantined.reasons] == ["the step is not a whole number"]


COUNTS = {name: [{"problem_id": i, "n": 4, "c": i + (name == "b")} for i in range(2)] for name in "ab"}
WITH_QUESTIONS = {k: [{"question": f"q{row['problem_id']}"} | row for row in rows] for k, rows in COUNTS.items()}


@pytest.mark.parametrize(
    ("document", "num_prompts"),
    [
        ({"scores": [{"benchmark": name, "problems": rows} for name, rows in COUNTS.items()]}, 4),
        ([{"dataset": name, "problems": rows} for name, rows in COUNTS.items()], 4),
        ({"results": COUNTS}, 4),
        ({"models": [{"model": name, "problems": rows} for name, rows in COUNTS.items()]}, 2),
        ({"results": WITH_QUESTIONS}, 2),
        ({"checkpoints": [{"step": index, "problems": rows} for index, rows in enumerate(COUNTS.values())]}, 2),
    ],
)
def test_what_stands_around_prompts_tells_benchmarks_policies_and_steps_apart(
    tmp_path: Path, document: Any, num_prompts: int
) -> None:
    run = read_run(write_rows(tmp_path / "log.json", document))
    assert [group.rewards.count(1.0) for group in run.groups] == [0, 1, 1, 2]
    assert len({group.prompt_id for group in run.groups}) == num_prompts


def test_elements_of_a_document_that_name_their_step_are_groups_of_it(tmp_path: Path) -> None:
    elements = [{"total_step": index + 1, "question": "q", "rewards": [0, index]} for index in range(3)]
    elements.append(elements[0] | {"total_step": "?"})
    run = read_run(write_rows(tmp_path / "log.json", {"losses": [0.5], "steps": elements}), naming(reward="rewards"))
    assert [(group.step, group.rewards) for group in run.groups] == [(1, (0.0, 0.0)), (2, (0.0, 1.0)), (3, (0.0, 2.0))]
    assert [value.reason for value in run.source.quarantined.reasons] == ["the step is not a whole number"]


@pytest.mark.parametrize(
    "samples_of_row",
    [
        *([], [{"response": "a"}], [{"reward": 1.0, "prompt": "q", "response": "a"}], [{"reward": 1.0, "length": 3}]),
        *([{"response": "a", "reward": 1.0, "task_id": 1}], [{"response": "a", "reward": 1.0}, {"reward": 0.0}], ["a"]),
    ],
)
def test_objects_that_are_not_all_samples_of_one_kind_stay_objects(samples_of_row: list[Any]) -> None:
    whole = {"task_id": 0, "rollouts": [{"response": "a", "reward": 1.0}]}
    rows = [whole, {"task_id": 1, "rollouts": samples_of_row}]
    assert objects_as_lists(rows, None) is rows
    assert objects_as_lists([whole, whole], "length") == [whole, whole]
    assert objects_as_lists([whole], None) == [{"task_id": 0, "response": ["a"], "reward": [1.0]}]


@pytest.mark.parametrize("name", ["dataset", "data_source", "benchmark", "task"])
@pytest.mark.parametrize("cells", [{"responses": ["a", "b"], "scores": [1, 0]}, {"n": 2, "c": 1}])
def test_ids_count_within_the_benchmark_that_rows_name(name: str, cells: dict[str, Any], tmp_path: Path) -> None:
    rows = [{name: x, "problem_id": i} | cells for x in ("aime", "math") for i in range(2 if x == "aime" else 5)]
    run = read(tmp_path, *rows)
    assert [group.prompt_id for group in run.groups] == [f"{row[name]}/{row['problem_id']}" for row in rows]
    assert run.source.inferred == (f"Prompts are told apart by {name}, problem_id.",)
    once = [row | {"problem_id": i} for i, row in enumerate(rows)]
    assert [group.prompt_id for group in read(tmp_path, *once).groups] == [str(i) for i in range(7)]


def policies_of(path: Path) -> tuple[tuple[str, ...], int, set[int]]:
    """The policies of a log, the number of its prompts, and the sizes of its groups."""
    table = reward_table(read_run(path).groups)
    return table.policies, len(table.prompts), set(table.size.tolist())


_VERDICTS = {f"t{i}": [1, 0, i % 2, 0] for i in range(10)}
_BY_NUMBER = {str(i): [1, 0, i % 2, 0] for i in range(10)}
_PROMPTS = [{"id": i, "completions": list("abcd"), "correct": [1, 0, i % 2, 0]} for i in range(10)]


@pytest.mark.parametrize(
    "under",
    [
        *(lambda names, cell=cell: dict.fromkeys(names, cell) for cell in (_VERDICTS, _BY_NUMBER)),
        lambda names: {"k": 4, "results": dict.fromkeys(names, _VERDICTS)},
        lambda names: {name: {k: {"texts": ["?"] * 4, "correct": c} for k, c in _VERDICTS.items()} for name in names},
        lambda names: {key: {name: {"n": 4, "c": 2} for name in names} for key in _VERDICTS},
        lambda names: [{"id": key} | {name: {"n": 4, "c": 2} for name in names} for key in _BY_NUMBER],
        *(lambda names, key=key: [{key: name, "results": _PROMPTS} for name in names] for key in ("model", "name")),
        lambda names: {name: {"per_question_correct": [1, 2] * 5, "n_samples": 4} for name in names},
        lambda names: {name: {"correct_counts": [1, 2] * 5} for name in names} | {"about": {"n_samples": 4}},
        lambda names: {"num_samples": 4, "of": {name: {"n_correct": [1, 2] * 5} for name in names}},
    ],
)  # fmt: skip
def test_samples_under_the_names_of_policies_are_theirs(under: Any, tmp_path: Path) -> None:
    for suffix, names in ((".json", ("base", "tuned")), (".jsonl", ("checkpoint 1", "checkpoint 2"))):
        log = under(names)
        path = tmp_path / f"a{suffix if isinstance(log, list) else '.json'}"
        assert policies_of(write_rows(path, log)) == (names, 10, {4})


@pytest.mark.parametrize(
    "make",
    [
        lambda cell: [{"id": index, "texts": ["?"] * 4, "correct": cell} for index in range(10)],
        lambda cell: {str(index): cell for index in range(10)},
    ],
)
def test_benchmarks_of_the_same_numbers_are_kept_apart(make: Callable[[Any], Any], tmp_path: Path) -> None:
    document = {"aime": make([0, 1, 0, 0]), "math": make([1, 1, 0, 1])}
    assert policies_of(write_rows(tmp_path / "a.json", document)) == ((), 20, {4})
    rows = [{"benchmark": name, "results": _PROMPTS} for name in ("aime", "math")]
    assert policies_of(write_rows(tmp_path / "b.json", rows)) == ((), 20, {4})
    failed = {"all": _PROMPTS, "failures": _PROMPTS[:2]}
    assert policies_of(write_rows(tmp_path / "c.json", failed)) == ((), 10, {4})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda i: {"question_id": "7", "content": "f", "test_id": i}, "7/0"),
        (lambda i: {"question_id": "7", "problem_id": "3", "id": f"sample_{i}", "input": f"f({i})"}, "sample_0"),
    ],
)
def test_executions_and_tests_of_a_problem_of_livecodebench_are_apart(
    tmp_path: Path, make: Callable[[int], dict[str, Any]], name: str
) -> None:
    samples = {"output_list": ["x", "y"], "pred_list": ["1", "2"], "graded_list": [True, False]}
    run = read_run(write_rows(tmp_path / "a.json", [make(i) | samples for i in range(3)]))
    assert (len(run.groups), run.groups[0].prompt_id, run.groups[0].rewards) == (3, name, (1.0, 0.0))


def test_a_score_file_of_bfcl_is_refused_with_what_joins_it_with_its_results(tmp_path: Path) -> None:
    header = {"accuracy": 0.5, "correct_count": 1, "total_count": 2}
    path = tmp_path / "score/m/BFCL_v4_simple_score.json"
    write_lines(path, header, {"id": "simple_0", "valid": False, "prompt": {}})
    hint = refusal(path, "is a score file of BFCL, which lists the cases that failed")
    results = write_lines(
        tmp_path / "result/m/BFCL_v4_simple_result.json", *({"id": f"simple_{i}", "result": "f()"} for i in (0, 1))
    )
    assert str(results) in hint
    command = hint.partition(": ")[2].partition(" > ")[0]
    if shutil.which("jq"):
        rows = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.splitlines()
        assert rewards_of(read_run(write_lines(tmp_path / "rows.jsonl", *map(json.loads, rows)))) == {
            "simple_0": (0.0,),
            "simple_1": (1.0,),
        }


@pytest.mark.parametrize(("num", "unfinished"), [(6, ""), (4, "has not ended: 4 of 6 samples")])
def test_a_document_of_tau2_bench_with_fewer_trials_than_planned_is_unfinished(
    tmp_path: Path, num: int, unfinished: str
) -> None:
    trials = [{"task_id": i % 3, "trial": i // 3, "reward_info": {"reward": 1.0}, "messages": []} for i in range(6)]
    info = {"info": {"num_trials": 2}, "tasks": [{"id": i} for i in range(3)]}
    run = read_run(write_rows(tmp_path / "a.json", {**info, "simulations": trials[:num]}))
    assert (run.source.num_rows, run.source.unfinished) == (num, unfinished)


def test_the_number_of_items_is_not_that_of_samples(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.json", {"a": {"per_question_correct": [1, 2]}, "config": {"num_samples": 2}})
    refusal(path, "is not a log that gradscope knows")


@pytest.mark.parametrize(
    "rows", [{"m": {"n_correct": [3] * 5, "n": 4}}, [{"n": 4, "c": 3}] * 5, {key: {"n": 4, "c": 3} for key in "01234"}]
)
@pytest.mark.parametrize(("files", "num_prompts"), [("a_chunk0 a_chunk1", 10), ("1-of-2 2-of-2", 10), ("rs0 rs1", 5)])
def test_positions_count_within_a_chunk(rows: Any, files: str, num_prompts: int, tmp_path: Path) -> None:
    for name in files.split():
        write_rows(tmp_path / f"{name}.json", rows)
    assert policies_of(tmp_path) == ((), num_prompts, {40 // num_prompts})
