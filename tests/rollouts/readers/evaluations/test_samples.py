from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY

LOGS = REPOSITORY / "fixtures" / "logs"


def read(tmp_path: Path, *rows: dict[str, Any], rewards_only: bool = False, **options: Any) -> Run:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(path, ReadOptions(**options), rewards_only=rewards_only)


def test_lists_keep_every_number_a_sample_and_its_text(tmp_path: Path) -> None:
    row = {
        "idx": 3,
        "question": "q",
        "code": ["a", "b"],
        "score": [True, False],
        "pred_score": [[2.5], [-1.0]],
        "k": [1],
    }
    run = read(tmp_path, row)
    first = run.groups[0].rollouts[0]
    assert (run.groups[0].prompt_id, run.groups[0].step) == ("3", 0)
    assert (first.prompt, first.completion, first.rewards) == ("q", "a", {"score": 1.0, "pred_score": 2.5})
    named = read(tmp_path, row, columns=ColumnNames(reward="pred_score"))
    assert named.groups[0].rewards == (2.5, -1.0)
    with pytest.raises(UsageError, match="There is no list 'grade' of rewards"):
        read(tmp_path, row, columns=ColumnNames(reward="grade"))


@pytest.mark.parametrize(
    ("row", "rewards"),
    [
        ({"task_id": 0, "n": 3, "c": 1, "passed": [1, 0, 0]}, (1.0, 0.0, 0.0)),
        ({"task_id": 0, "scores": [0.5, None], "responses": ["a", "b"]}, (0.5, None)),
        ({"task_id": 0, "completions": [{"text": "a", "score": 1.0}, {"text": "b", "score": 0.0}]}, (1.0, 0.0)),
        ({"task_id": 0, "num_samples": 2, "num_correct": 2}, (1.0, 1.0)),
        ({"question": "q", "m1": {"is_correct": True}, "m2": {"is_correct": None}}, None),
        ({"question": "q", "m1": {"is_correct": True}, "m2": {"is_correct": False}}, (1.0, 0.0)),
    ],
)
def test_the_shapes_of_a_row(tmp_path: Path, row: dict[str, Any], rewards: tuple[float | None, ...] | None) -> None:
    if rewards is None:
        with pytest.raises(InputError, match="is not a log that gradscope knows"):
            read(tmp_path, row)
    else:
        assert [group.rewards for group in read(tmp_path, row).groups] == [rewards]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"task_id": 1, "n": 3, "c": 2, "passed": [1, 0, 0]}, "n and c contradict the list of samples"),
        ({"task_id": 1, "passed": [], "responses": []}, "the list of samples is empty"),
        ({"task_id": 1, "n": 3, "c": 4}, "n and c are not counts with 0 <= c <= n and n >= 1"),
        ({"task_id": 1, "n": 0, "c": 0}, "n and c are not counts with 0 <= c <= n and n >= 1"),
        ({"task_id": 1, "n": 10**12, "c": 0}, "n and c are not counts with 0 <= c <= n and n >= 1"),
        ({"task_id": 1, "n": True, "c": 0}, "n and c are not counts with 0 <= c <= n and n >= 1"),
        ({"task_id": 1}, "the row holds no samples with a reward"),
    ],
)
def test_a_row_that_contradicts_itself_is_set_aside(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    good = [{"task_id": f"good{number}", "n": 2, "c": 1} for number in range(2)]
    run = read(tmp_path, *good, row)
    assert [found.reason for found in run.source.quarantined.reasons] == [reason]
    assert run.source.quarantined.reasons[0].first.endswith("samples.jsonl:3")


def test_rows_of_one_prompt_are_one_group_unless_policies_are_named(tmp_path: Path) -> None:
    counts = [{"task_id": task, "n": 2, "c": 1} for task in (0, 1, 1)]
    assert [group.rewards for group in read(tmp_path, *counts).groups] == [(1.0, 0.0), (1.0, 0.0, 1.0, 0.0)]
    rows = [{"model": m, "category": "x", "dataset": "y", "i": 4, "scores": [1.0, 0.0]} for m in "ab"]
    run = read(tmp_path, *rows, columns=ColumnNames(reward="scores"))
    assert [group.group_id for group in run.groups] == ["a/x/y/4", "b/x/y/4"]
    assert {group.prompt_id for group in run.groups} == {"x/y/4"}


def test_rows_without_identity_are_told_apart_by_their_lines(tmp_path: Path) -> None:
    run = read(tmp_path, *({"scores": [float(n)], "responses": ["a"]} for n in (1, 0)))
    assert [group.prompt_id for group in run.groups] == ["1", "2"]
    assert run.source.inferred[0] == "Prompts are told apart by their lines."


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
    for whole, group in zip(by_row.groups, bare.groups, strict=True):
        assert (group.group_id, group.prompt_id, group.size) == (whole.group_id, whole.prompt_id, whole.size)
        kept = [[(r.reward, sorted(r.rewards.items()), r.policy) for r in one.rollouts] for one in (whole, group)]
        assert sorted(kept[0], key=repr) == sorted(kept[1], key=repr)
    assert (bare.source.num_rows, bare.source.quarantined) == (by_row.source.num_rows, by_row.source.quarantined)


def test_counted_samples_are_one_object_and_those_that_are_none_are_set_aside(tmp_path: Path) -> None:
    odd = {"task_id": "t", "passed": [True, False, True, None, "x", "x", {}, [1, 2]], "code": ["a"] * 8}
    whole, bare = read(tmp_path, odd), read(tmp_path, odd, rewards_only=True)
    assert bare.source.quarantined == whole.source.quarantined
    (group,) = read(tmp_path, {"task_id": "t", "n": 300, "c": 100}, rewards_only=True).groups
    assert (group.size, sum(reward or 0.0 for reward in group.rewards)) == (300, 100.0)
    assert len({id(rollout) for rollout in group.rollouts}) == 2


def test_a_list_of_which_nothing_says_what_it_holds_is_refused_with_the_option_that_says_so(tmp_path: Path) -> None:
    rows = [{"task_id": n, "passed": [True, False]} for n in range(3)]
    with pytest.raises(InputError, match="a list 'passed' in a row, and no list of as many responses") as caught:
        read(tmp_path, *rows)
    assert caught.value.hint == "If each entry is a sample, name the list: --reward-column passed"
    assert read(tmp_path, *rows, columns=ColumnNames(reward="passed")).source.num_rows == 6


def test_criteria_of_one_response_are_not_its_samples(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "response": text, "reward": 1.0, "scores": [0.1, 0.2, 0.3]} for text in "ab"]
    assert [group.rewards for group in read(tmp_path, *rows).groups] == [(1.0, 1.0)]


def test_numbered_verdicts_are_rows_and_not_counts(tmp_path: Path) -> None:
    rows = [{"task_id": task, "n": n, "correct": int(n > task)} for task in (1, 2) for n in (1, 2, 3, 4)]
    run = read(tmp_path, *rows)
    assert [group.rewards for group in run.groups] == [(0.0, 1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)]
    named = read(tmp_path, *rows, columns=ColumnNames(num_samples="n", num_correct="correct"))
    assert [group.size for group in named.groups] == [10, 10]


@pytest.mark.parametrize(
    "row", [{"n": 4, "correct": 3}, {"n": 4, "num_correct": 3}, {"n": 4, "passed": 3}, {"n_samples": 4, "n_passed": 3}]
)
def test_tables_of_counts_are_known_by_their_names(tmp_path: Path, row: dict[str, int]) -> None:
    run = read(tmp_path, *({"task_id": task, **row} for task in range(3)))
    assert run.source.recognized == "samples of prompts as counts"
    assert [group.rewards for group in run.groups] == [(1.0, 1.0, 1.0, 0.0)] * 3
