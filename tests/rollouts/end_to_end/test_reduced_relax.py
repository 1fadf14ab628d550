"""Reduced rollouts of Relax have the answers of the row reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from tests.conftest import REPOSITORY
from tests.rollouts.readers.reduced import STRANGE, answers, assert_same, in_small_blocks, mutated, write_lines

SEVERAL = {"score": 1.0, "for'mat": 0.5, "note": "x"}


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)


def row(step: int = 0, group: int = 0, sample: int = 0, **cells: Any) -> dict[str, Any]:
    usual = {"rollout_id": step, "sample_index": sample, "group_index": group, "prompt": f"é{group}", "response": "r"}
    return usual | {"reward": sample / 3, "status": "completed"} | cells


def write(folder: Path, *files: Sequence[Any], ended: bool = True) -> Path:
    for step, rows in enumerate(files):
        lines = [cells if isinstance(cells, str) else json.dumps(cells) for cells in rows]
        write_lines(folder / "rollout_result" / "train" / f"{step}.jsonl", lines, ended=ended)
    return folder


ROWS = [row(step, group, 4 * group + at) for step in (0, 1) for group in (0, 1) for at in range(4)]
MESSAGES = [
    row(prompt=[{"role": "user", "content": "q", "name": None}], sample_index=7),
    row(prompt=[1]),
    row(prompt=None),
]


@pytest.mark.slow
@pytest.mark.parametrize("reward", [{}, {"reward": SEVERAL}], ids=["one", "several"])
def test_damaged_rollouts_have_the_answers_of_the_row_reader(tmp_path: Path, reward: dict[str, Any]) -> None:
    num_reduced = 0
    for seed in range(7):
        rows = [cells | reward for cells in (*ROWS, *MESSAGES)]
        files = [[rows[0], *mutated(rows, 2 * seed + at, within=("reward",))] for at in range(1 + seed % 2)]
        named = {} if seed % 3 or not reward else {"columns": ColumnNames(reward="for'mat")}
        run = assert_same(write(tmp_path / str(seed), *files, ended=seed % 2 == 0), **named)
        num_reduced += run is not None and holds_rewards_alone(run.groups)
    assert num_reduced > 4


def test_the_sample_of_the_format() -> None:
    run = assert_same(REPOSITORY / "fixtures/logs/relax", is_reduced=True)
    assert run is not None
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "key"), list(enumerate(sorted(row()))))
def test_an_odd_cell_has_the_answer_of_the_row_reader(tmp_path: Path, number: int, key: str) -> None:
    for at, value in enumerate(STRANGE[number % 2 :: 2]):  # every other value a key, for the sake of time
        rows = [row(), row(sample=1, **{key: value}), row(sample=2), row(sample=1, **{key: value})]
        assert_same(write(tmp_path / str(at), rows, [row(1, 1, 1, **{key: value})]))


def test_a_sample_that_returns_counts_once_and_not_where_it_contradicts_itself(tmp_path: Path) -> None:
    rows = [row(), row(sample=1), row(), row(sample=1, response="else"), row(sample=2, sample_index=None)] * 2
    run = assert_same(write(tmp_path, rows, [row(sample=1)]), is_reduced=True)
    assert run is not None
    assert [group.rewards for group in run.groups] == [(0.0, None, 2 / 3, 2 / 3)]


@pytest.mark.parametrize(
    "rewards",
    [
        ["x"],
        [float("nan"), float("inf"), None, [1.0], True],
        [SEVERAL, {"score": 0.5}, {"for'mat": 1.0}, 0.5, None, {}, {"score": float("nan")}],
        [1.0] * 20 + [SEVERAL],
        [SEVERAL] * 20 + [{"late": 1.0}],
        [SEVERAL] * 20 + [{"late": "x"}],
        [{"note": "x"}] * 20 + [{"late": True}],
    ],
)
def test_which_rewards_there_are(tmp_path: Path, rewards: list[Any]) -> None:
    rows = [row(0, 0, at, reward=reward) for at, reward in enumerate(rewards)]
    assert_same(
        write(
            tmp_path,
            [*rows, *(row(1, 1, at, reward=cells["reward"]) for at, cells in enumerate(rows))],
            [row(reward=rewards[0])],
        )
    )
    assert_same(
        write(
            tmp_path / "usable",
            [row(0, 0, 99, reward=SEVERAL if SEVERAL in rewards[:20] else 1.0), *rows[:-1]],
            rows[-1:],
        )
    )
    if len(rewards) > 1:
        assert_same(write(tmp_path / "late", rows), is_reduced=True)


def test_a_file_that_has_no_rewards_before_others_have_several_is_surveyed(tmp_path: Path) -> None:
    later = [row(sample=at, reward={"b": 1.0, "a": 0.0} if at == 20 else None) for at in range(21)]
    assert_same(write(tmp_path, later, [row(1, reward={"a": 1.0, "b": 0.0})]), is_reduced=True)


def test_a_reward_that_is_named_and_not_there_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, [row(reward=SEVERAL)])
    assert assert_same(path, columns=ColumnNames(reward="nothing")) is None
    assert assert_same(path, columns=ColumnNames(reward="for'mat"), is_reduced=True) is not None
    assert (
        assert_same(write(tmp_path / "one", [row()]), columns=ColumnNames(reward="nothing"), is_reduced=True)
        is not None
    )


def test_rewards_that_come_late_are_seen_at_every_later_look(tmp_path: Path) -> None:
    rows, so_far = [row(sample=at, reward={"score": 1.0}) for at in range(22)], ReadSoFar()
    rows[20] |= {"reward": {"late": 1.0}, "group_index": None}
    for number in (20, 21, 22):
        write(tmp_path, rows[:number])
        again, anew = (read_run(tmp_path, rewards_only=True, so_far=known) for known in (so_far, None))
        assert answers(again) == answers(anew)
        assert holds_rewards_alone(again.groups)
