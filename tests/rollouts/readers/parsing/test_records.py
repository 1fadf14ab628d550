import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import records
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import (
    ReadRequest,
    are_cut_off,
    chosen_name,
    end_column,
    list_names,
    status_in,
)
from gradscope.rollouts.run import Run
from tests.rollouts.build import adapter_folder, group, model_folder
from tests.rollouts.readers.lines import naming, refused, rewards_of, set_aside, write_lines

REPEATS = "the row repeats an earlier one of the same sample"
CONTRADICTS = "the row contradicts an earlier one of the same sample, so that neither counts"


def row(**cells: Any) -> dict[str, Any]:
    return {"step": 1, "group_id": "a", "reward": 1.0, **cells}


def read(path: Path, *rows: Any) -> Run:
    return read_run(write_lines(path / "log.jsonl", *rows))


def test_long_lists_of_names_are_cut_off() -> None:
    assert list_names([]) == "none"
    assert list_names(["a", "b"]) == "'a', 'b'"
    assert list_names(map(str, range(22))).endswith("'19' and 2 more")


def test_the_named_scorer_counts_else_the_first() -> None:
    request = ReadRequest(path=Path("log"))
    named = ReadRequest(path=Path("log"), options=naming(reward="f1"))
    assert chosen_name(["acc", "f1", "acc"], request, "metric", "none") == "acc"
    assert chosen_name(["acc", "f1"], named, "metric", "none") == "f1"
    hint = refused(r"^log has no metric 'f1'\.$", chosen_name, ["acc", "acc"], named, "metric", "none")
    assert hint == "Its metrics are 'acc'; name one with --reward-column."
    refused(r"^log has no scored samples\.$", chosen_name, [], request, "scorer", "no scored samples")


def test_a_row_that_was_written_twice_counts_once(tmp_path: Path) -> None:
    rows = [row(sample_idx=i, reward=float(i)) for i in (0, 1, 2)]
    run = read(tmp_path, *rows, rows[1], row(sample_idx=1, group_id="b"))
    assert rewards_of(run) == {"1:a": (0.0, 1.0, 2.0), "1:b": (1.0,)}
    assert set_aside(run) == {REPEATS: 1}
    assert run.source.quarantined.reasons[0].first.endswith("log.jsonl:4")
    assert "told apart by 'sample_idx'" in run.source.inferred[1]


def test_rows_that_contradict_each_other_leave_the_group_without_a_verdict(tmp_path: Path) -> None:
    run = read(tmp_path, row(sample_idx=0), row(sample_idx=1), row(sample_idx=1, reward=0.0))
    assert rewards_of(run) == {"1:a": (1.0, None)}
    assert run.groups[0].rollouts[1].rewards == {"reward": None}
    assert set_aside(run) == {CONTRADICTS: 2}
    assert run.source.num_rows + run.source.quarantined.num_rows == 3


def test_an_id_that_all_rows_of_a_group_share_is_the_prompts_and_drops_nothing(tmp_path: Path) -> None:
    run = read(tmp_path, *(row(sample_id="p", reward=float(index)) for index in range(3)))
    assert rewards_of(run) == {"1:a": (0.0, 1.0, 2.0)}
    assert set_aside(run) == {}


def test_equal_rows_without_an_id_are_two_rollouts(tmp_path: Path) -> None:
    assert rewards_of(read(tmp_path, row(), row())) == {"1:a": (1.0, 1.0)}


def test_groups_of_unequal_size_and_of_one_stay_and_are_reported(tmp_path: Path) -> None:
    run = read(tmp_path, row(), row(), row(group_id="b"))
    assert [group.size for group in run.groups] == [2, 1]
    assert run.source.inferred[-1] == "Groups differ in size: 1 to 2 rollouts."


@pytest.mark.parametrize("rewards_only", [False, True])
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((1, 2, 3, 4, 3, 4, 5), "steps 3,4 have 16 rollouts, where others have 4 a step"),
        ((1, 2, 3, 3, 3), "step 3 has 12 rollouts, where others have 4 a step"),
        ((1, 2, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7), "steps 1:5 have 40 rollouts, where others have 4 a step"),
        ((1, 2, 3), ""),
        ((2, 2), ""),  # one other step is no rule
        ((1, 2, 1, 2), ""),
    ],
)
def test_repeated_steps_are_reported(tmp_path: Path, steps: tuple[int, ...], expected: str, rewards_only: bool) -> None:
    rows = [row(step=step, group_id=group) for step in (*steps, 9) for group in "aabb"]
    path = write_lines(tmp_path / "log.jsonl", *rows[: len(rows) - 1])  # the last step lacks a row
    sentences = [text for text in read_run(path, rewards_only=rewards_only).source.inferred if "logged twice" in text]
    end = ", and no id tells a resumed run's samples from the earlier ones."
    assert sentences == ([f"Perhaps logged twice: {expected}{end}"] if expected else [])


def test_steps_of_any_size_and_samples_with_ids_are_not_logged_twice(tmp_path: Path) -> None:
    uneven = [row(step=step, group_id=f"{index}") for step in range(9) for index in range(3 + step)]
    with_ids = [row(step=step, group_id="a", sample_idx=index) for step in (1, 2, 3, 2, 3, 4) for index in range(3)]
    for rows in (uneven, with_ids):
        assert "logged twice" not in str(read(tmp_path, *rows).source.inferred)


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [((0.5,), (0.5,), 0.5), ((0.5,), (-0.5,), None), (None, (0.5,), 2.0), ((0.5,), None, 2.0)],
)
def test_a_rollout_has_the_advantage_that_all_its_sequences_have(before: Any, last: Any, expected: Any) -> None:
    first, named = (
        Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,), token_advantages=values) for values in (before, last)
    )
    bare = records.Record(step=1, group="a", prompt_id="p", prompt="", completion="", reward=1.0, advantage=2.0)
    (group,) = records.build_groups([replace(bare, tokens=named, earlier=(first,))], QuarantineLog())
    assert (group.rollouts[0].advantage, group.rollouts[0].earlier) == (expected, (first,))


def test_a_peek_is_the_first_rows_of_the_first_file_that_has_any(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("\nno json\n")
    write_lines(tmp_path / "2.jsonl", *({"row": number} for number in range(60)))
    write_lines(tmp_path / "3.jsonl", {"row": "other"})
    assert records.peek(tmp_path) == [{"row": number} for number in range(50)]
    assert records.peek(tmp_path / "1.jsonl") == records.peek(tmp_path / "*.csv") == []


@pytest.mark.slow
def test_of_long_rows_fewer_are_peeked_at(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", *({"row": number, "text": "x" * 6_000_000} for number in range(5)))
    assert [row["row"] for row in records.peek(log)] == [0, 1, 2]


def test_records_become_a_run_with_what_was_asked_for(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", {})
    initial = adapter_folder(tmp_path / "adapter", base="gone")
    (tmp_path / "config.json").write_text(json.dumps({"args": {"beta": 0.5}}))
    base = model_folder(tmp_path / "base")
    (base / "tokenizer.json").write_text("{}")
    options = ReadOptions(initial_weights=initial, model=base, trainer_args=tmp_path / "config.json")
    request = records.ReadRequest(path=log, options=options)
    record = records.Record(step=2, group="a", prompt_id="p", prompt="2+2", completion="4", reward=1.0)
    groups = records.build_groups([record], quarantine := QuarantineLog())
    run = records.assemble_groups(request, request.source("f", "a log"), groups=groups, quarantine=quarantine)
    assert [(g.step, g.group_id, g.prompt_id, g.rewards) for g in run.groups] == [(2, "2:a", "p", (1.0,))]
    assert (run.source.format, run.source.recognized, run.source.num_rows) == ("f", "a log", 1)
    assert run.source.files == (str(log),)
    assert run.settings.get("beta") == 0.5
    assert [(ref.num_updates, ref.kind, ref.base) for ref in run.weights] == [(0, "adapter", str(base))]
    assert run.tokenizer == base


def test_rows_without_a_reward_are_of_no_use_where_a_format_has_rewards(tmp_path: Path) -> None:
    request, quarantine = records.ReadRequest(path=tmp_path), QuarantineLog()
    half = records.assemble_groups(
        request, request.source("f", ""), groups=(group(rewards=(1.0, None)),), quarantine=quarantine
    )
    assert half.source.num_rows == 1
    no_reward = (group(rewards=(None, None)),)
    with pytest.raises(InputError, match=f"^{tmp_path} has no usable rows.$"):
        records.assemble_groups(request, request.source("f", ""), groups=no_reward, quarantine=quarantine)
    run = records.assemble_groups(
        request, request.source("f", ""), groups=no_reward, quarantine=quarantine, needs_reward=False
    )
    assert run.source.num_rows == 2


def test_the_first_reason_is_named_where_nothing_is_left(tmp_path: Path) -> None:
    quarantine = QuarantineLog()
    quarantine.add("the line is blank", "log:1")
    with pytest.raises(InputError, match=r"has no usable rows; set aside: 1, first log:1: the line is blank\."):
        records.assemble_groups(
            records.ReadRequest(path=tmp_path),
            records.ReadRequest(path=tmp_path).source("f", ""),
            groups=(),
            quarantine=quarantine,
        )


@pytest.mark.parametrize(
    ("name", "cell", "status"),
    [
        ("finish_reason", "stop", "completed"),
        ("finish_reason", "FinishReason.LENGTH", "truncated"),
        ("finish_reason", "true", "unknown"),
        ("finish_reason", {"type": "length", "length": 5}, "truncated"),
        ("finish_reason", {"matched": "stop"}, "unknown"),
        ("stop_reason", 2, "unknown"),
        ("stop_reason", None, "unknown"),
        ("status", "ABORTED", "error"),
        ("status", "Status.SUCCEEDED", "completed"),
        ("is_truncated", True, "truncated"),
        ("is_truncated", "0.0", "completed"),
        ("truncated", "2.0", "unknown"),
        ("truncated", "length", "truncated"),
    ],
)
def test_a_word_or_a_flag_says_how_a_completion_ended(name: str, cell: Any, status: str) -> None:
    assert status_in(cell, name) == status


def test_what_failed_or_says_nothing_is_not_known_to_be_cut_off() -> None:
    ends = are_cut_off(["length", {"type": "stop"}, "abort", None, "length"], "finish_reason")
    np.testing.assert_array_equal(ends, [1.0, 0.0, math.nan, math.nan, 1.0])


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"truncated": [0], "finish_reason": ["stop"]}, "finish_reason"),
        ({"a.is_truncated": [True]}, "a.is_truncated"),
        ({"status": ["completed", None, "truncated", "aborted"]}, "status"),
        ({"status": ["completed", "failed"]}, None),  # as calls and tests do
        ({"status": ["truncated", "passed"]}, None),
        ({"a.status": ["truncated"], "status": ["ok"]}, "a.status"),
        ({}, None),
    ],
)
def test_a_status_counts_where_it_says_of_all_completions_how_they_ended(
    columns: dict[str, list[Any]], name: str | None
) -> None:
    assert end_column(columns, columns.__getitem__) == name
