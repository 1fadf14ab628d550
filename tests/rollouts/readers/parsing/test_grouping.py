from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Tokens
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

REPEATS = "the row repeats an earlier one of the same sample"


CONTRADICTS = "the row contradicts an earlier one of the same sample, so that neither counts"


def row(**cells: Any) -> dict[str, Any]:
    return {"step": 1, "group_id": "a", "reward": 1.0, **cells}


def read(path: Path, *rows: Any) -> Run:
    return read_run(write_lines(path / "log.jsonl", *rows))


def test_a_row_that_was_written_twice_counts_once(tmp_path: Path) -> None:
    rows = [row(sample_idx=at, reward=float(at)) for at in (0, 1, 2)]
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
    run = read(tmp_path, *(row(sample_id="p", reward=float(at)) for at in range(3)))
    assert rewards_of(run) == {"1:a": (0.0, 1.0, 2.0)}
    assert set_aside(run) == {}


def test_equal_rows_without_an_id_are_two_rollouts(tmp_path: Path) -> None:
    assert rewards_of(read(tmp_path, row(), row())) == {"1:a": (1.0, 1.0)}


def test_groups_of_unequal_size_and_of_one_are_kept_and_said(tmp_path: Path) -> None:
    run = read(tmp_path, row(), row(), row(group_id="b"))
    assert [group.size for group in run.groups] == [2, 1]
    assert run.source.inferred[-1] == "Groups differ in size: 1 to 2 rollouts."


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [((0.5,), (0.5,), 0.5), ((0.5,), (-0.5,), None), (None, (0.5,), 2.0), ((0.5,), None, 2.0)],
)
def test_a_rollout_has_the_advantage_that_all_its_sequences_have(before: Any, last: Any, expected: Any) -> None:
    first, own = (
        Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,), token_advantages=values) for values in (before, last)
    )
    bare = Record(step=1, group="a", prompt_id="p", prompt="", completion="", reward=1.0, advantage=2.0)
    (group,) = build_groups([replace(bare, tokens=own, earlier=(first,))], QuarantineLog())
    assert (group.rollouts[0].advantage, group.rollouts[0].earlier) == (expected, (first,))
