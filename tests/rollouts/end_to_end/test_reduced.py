"""Logs that are read by blocks have the answers of their rows one by one, whatever their cells hold."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from tests.rollouts.readers.lines import write_lines
from tests.rollouts.readers.reduced import STRANGE, answers, assert_reduced, assert_same, in_small_blocks, mutated

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)


def areal(step: int = 1, task: Any = 0, sample: Any = 0, **cells: Any) -> Row:
    usual = {"task_id": task, "sample_idx": sample, "head_version": step, "tail_version": step}
    return usual | {"reward": float(sample == 0), "prompt": f"{task}?", "completion": f"{sample}"} | cells


def tinker(step: int = 0, group: int = 0, sample: int = 0, **cells: Any) -> Row:
    usual = {"iteration": step, "group_idx": group, "traj_idx": sample, "total_reward": float(sample)}
    return usual | {"trajectory_metrics": {"correct": sample / 3, "for'mat": sample > 0, "note": "x"}} | cells


def relax(step: int = 0, group: int = 0, sample: int = 0, **cells: Any) -> Row:
    usual = {"rollout_id": step, "sample_index": sample, "group_index": group, "prompt": f"é{group}", "response": "r"}
    return usual | {"reward": sample / 3, "status": "completed"} | cells


def traces(step: int = 1, index: int = 0, sample: int = 0, **cells: Any) -> Row:
    usual: Row = {"step": step, "prompt_idx": index, "prompt_tokens": [1, 20 + index], "finish_reason": "stop"}
    response = {"response_tokens": [5] * (1 + sample), "logprobs": [-0.5] * (1 + sample), "reward": float(sample)}
    return usual | response | cells


def nemo(prompt: int = 5, reward: float = 1.0, **cells: Any) -> Row:
    tokens = {"token_ids": [[1, prompt, 7, 9, 2, 0, 0]], "token_loss_mask": [[0, 0, 0, 1, 1, 0, 0]]}
    numbers = {"advantages": [[0.5] * 7], "generation_logprobs": [[-0.5] * 7], "sample_loss_mask": [1.0]}
    return {"content": [[f"{prompt}?", "4"]], "rewards": [reward], "input_lengths": [5]} | tokens | numbers | cells


def without_keys(rows: Sequence[Row], *names: str) -> list[Row]:
    return [{name: cell for name, cell in row.items() if name not in names} for row in rows]


class Log(Struct, frozen=True):
    rows: Sequence[Row]
    file: str
    nested: tuple[str, ...] = ()

    def write(self, folder: Path, *files: Sequence[Row | str], ended: bool = True) -> Path:
        for number, rows in enumerate(files):
            write_lines(folder / self.file.format(number), *rows, ended=ended)
        return folder


TRACES = [traces(step, index, sample) for step in (1, 2) for index in (0, 1, 10) for sample in (0, 1)]
NEMO = [nemo(prompt, reward) for prompt in (5, 6, 10) for reward in (0.0, 1.0)]
FILTERED = [
    nemo(reward=0.0, filtered_rewards=[0.5]),
    nemo(),
    nemo(6, token_loss_mask=[[0.0, 1.0, 0.0, 1.0, 1.0, 0, 0]]),
]
TEXT = [{name: row[name] for name in ("content", "rewards")} for row in NEMO[:4]]
RELAX = [relax(step, group, 4 * group + i) for step in (0, 1) for group in (0, 1) for i in range(4)]
MESSAGES = [
    relax(prompt=[{"role": "user", "content": "q", "name": None}], sample_index=7),
    relax(prompt=[1]),
    relax(prompt=None),
]
REWARDS = {"score": 1.0, "for'mat": 0.5, "note": "x"}
_RELAX_FILES = ("rollout_result/train/{}.jsonl", ("reward",))
_NEMO_FILES = ("exp_001/train_data_step{}.jsonl", ("content",))
LOGS = {
    "areal": Log(
        [areal(step, task, i) for step in (1, 2) for task in (0, "t", 10) for i in range(3)], "rollout/{}/0.jsonl"
    ),
    "tinker": Log(
        [tinker(step, group, i) for step in (0, 1) for group in (0, 1) for i in range(3)],
        "iteration_00000{}/train_rollout_summaries.jsonl",
        ("trajectory_metrics",),
    ),
    "relax": Log([*RELAX, *MESSAGES], *_RELAX_FILES),
    "relax, several rewards": Log([row | {"reward": REWARDS} for row in (*RELAX, *MESSAGES)], *_RELAX_FILES),
    "open-instruct": Log(TRACES, "a_rollouts_00000{}.jsonl"),
    "open-instruct, no log-probabilities": Log(without_keys(TRACES, "logprobs"), "a_rollouts_00000{}.jsonl"),
    "nemo-rl": Log(NEMO, *_NEMO_FILES),
    "nemo-rl, filtered": Log(FILTERED, *_NEMO_FILES),
    "nemo-rl, text": Log(TEXT, *_NEMO_FILES),
    "nemo-rl, both": Log([*NEMO, *TEXT], *_NEMO_FILES),
}
each_log = pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)


@pytest.mark.slow
@each_log
def test_damaged_logs(tmp_path: Path, log: Log) -> None:
    num_reduced = 0
    for seed in range(4):
        lists = [with_an_odd_element(row, random.Random(seed + index)) for index, row in enumerate(log.rows)]
        files = [[log.rows[0], *mutated(lists, 9 * seed + index, nested=log.nested)] for index in range(1 + seed % 3)]
        run = assert_same(log.write(tmp_path / str(seed), *files, ended=seed % 2 == 0))
        num_reduced += run is not None and holds_rewards_alone(run.groups)
    assert num_reduced > 2  # else the property holds of nothing


def with_an_odd_element(row: Row, chance: random.Random) -> Row:
    """A row with damage inside of a list, now and then."""
    damaged: Row = json.loads(json.dumps(row))
    lists = [cell[0] for cell in damaged.values() if isinstance(cell, list) and cell and isinstance(cell[0], list)]
    lists += [cell for cell in damaged.values() if isinstance(cell, list)]
    for chosen in lists[:1] and [chance.choice(lists)] if chance.random() < 0.3 else ():
        chosen[chance.randrange(len(chosen))] = chance.choice(STRANGE)
    return damaged


# "nemo-rl, both" has the cells of "nemo-rl" and of "nemo-rl, text"; others differ from their neighbor in a cell or two
KEYS = {name: {key for row in log.rows for key in row} for name, log in LOGS.items()}
KEYS |= {"nemo-rl": set(), "nemo-rl, text": set(), "nemo-rl, filtered": {"filtered_rewards"}}
KEYS |= {"relax, several rewards": {"reward"}, "open-instruct, no log-probabilities": {"response_tokens", "reward"}}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, keys in KEYS.items() if keys])
def test_cells_of_any_kind(tmp_path: Path, name: str) -> None:
    log = LOGS[name]
    for number, key in enumerate(sorted(KEYS[name])):
        rows = [log.rows[index % len(log.rows)] for index in range(2 * len(STRANGE))]
        strange = [row | {key: cell} for row, cell in zip(rows, (*STRANGE, *([cell] for cell in STRANGE)), strict=True)]
        lines = [line for index, row in enumerate(strange) for line in (*rows[index : index + (index % 3 == 0)], row)]
        assert_same(log.write(tmp_path / str(number), [*lines, *without_keys(rows[:1], key)]))


@each_log
def test_proper_logs_are_reduced(tmp_path: Path, log: Log) -> None:
    assert_reduced(log.write(tmp_path, log.rows, log.rows))


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("open-instruct", {"prompt_tokens": [1, 99]}),
        ("open-instruct", {"prompt_tokens": [1, 99], "reward": None}),
        ("open-instruct", {"prompt_tokens": [1, 99], "response_tokens": None}),
        ("open-instruct", {"prompt_tokens": [1, 99], "logprobs": []}),
        ("open-instruct", {"prompt_tokens": [1, 99], "prompt_idx": None}),
        ("open-instruct", {"prompt_tokens": [1, -20]}),
        ("open-instruct", {"logprobs": "ab", "response_tokens": []}),
        ("open-instruct", {"response_tokens": [5, "a"], "logprobs": [0, 0]}),
        ("open-instruct", {"response_tokens": [1 << 70]}),
        ("nemo-rl", {"token_loss_mask": [[False, False, False, True, True, True, True]]}),
        ("nemo-rl", {"token_loss_mask": [[0, None, 0, 1, 1]]}),
        ("nemo-rl", {"token_loss_mask": [[0, "", 2, 1, 1]]}),
        ("nemo-rl", {"token_ids": [[1, 5, 7, 9, 2]], "input_lengths": [5.0]}),
        ("nemo-rl", {"token_ids": [[1, 5, 7, 9, 2, 0.5]]}),
        ("nemo-rl", {"token_ids": [[1, 5, 7]]}),
        ("nemo-rl", {"input_lengths": [-2]}),
        ("nemo-rl", {"sample_loss_mask": [0]}),
        ("nemo-rl", {"filtered_rewards": [0.25, 0.5]}),
        ("nemo-rl, text", {"content": [["a"]]}),
        ("nemo-rl, text", {"content": [[{"role": "user", "content": "5?"}, "4"]]}),
        ("nemo-rl, text", {"content": [["5?", 1, "x"]]}),
    ],
)
def test_a_row_that_is_unlike_the_others(tmp_path: Path, name: str, cells: Row) -> None:
    log = LOGS[name]
    assert_reduced(log.write(tmp_path, [*log.rows, log.rows[0] | cells]))


@pytest.mark.parametrize("begun", [0, "0", 1, 1.0, None, True, "x", "1_0", " 0", [0], 0.5])
def test_samples_of_areal_that_were_begun_earlier_are_noted(tmp_path: Path, begun: Any) -> None:
    run = assert_reduced(LOGS["areal"].write(tmp_path, [areal(), areal(1, 0, 1, head_version=begun), areal(1, 0, 2)]))
    assert ("head_version" in run.source.inferred[-1]) == (begun in (0, "0", " 0") and begun is not False)
    assert run.groups[0].rollouts[0].rewards == {}


def test_a_row_of_tinkers_without_an_iteration_has_that_of_its_folder(tmp_path: Path) -> None:
    run = assert_reduced(LOGS["tinker"].write(tmp_path, [tinker()], without_keys([tinker()], "iteration"), [tinker(1)]))
    assert [(group.group_id, group.size) for group in run.groups] == [("0", 1), ("1:0", 2)]


@pytest.mark.parametrize("value", [1.0, True, float("nan"), "x"])
def test_metrics_of_tinkers_that_come_late_are_seen(tmp_path: Path, value: Any) -> None:
    rows = [*[tinker()] * 20, tinker(trajectory_metrics={"late": value})]
    rows += [tinker(trajectory_metrics=metrics) for metrics in ({}, None, {"note": "x"})]
    assert_reduced(LOGS["tinker"].write(tmp_path, rows))


def test_a_sample_that_returns_counts_once_and_not_where_it_contradicts_itself(tmp_path: Path) -> None:
    rows = [relax(), relax(sample=1), relax(), relax(sample=1, response="else"), relax(sample=2, sample_index=None)] * 2
    run = assert_reduced(LOGS["relax"].write(tmp_path, rows, [relax(sample=1)]))
    assert [group.rewards for group in run.groups] == [(0.0, None, 2 / 3, 2 / 3)]


@pytest.mark.parametrize(
    "rewards",
    [
        ["x"],
        [float("nan"), float("inf"), None, [1.0], True],
        [REWARDS, {"score": 0.5}, {"for'mat": 1.0}, 0.5, None, {}, {"score": float("nan")}],
        [1.0] * 20 + [REWARDS],
        [REWARDS] * 20 + [{"late": 1.0}],
        [REWARDS] * 20 + [{"late": "x"}],
        [{"note": "x"}] * 20 + [{"late": True}],
    ],
)
def test_which_rewards_relax_has(tmp_path: Path, rewards: list[Any]) -> None:
    rows, log = [relax(0, 0, index, reward=reward) for index, reward in enumerate(rewards)], LOGS["relax"]
    repeated = [relax(1, 1, index, reward=row["reward"]) for index, row in enumerate(rows)]
    assert_same(log.write(tmp_path, [*rows, *repeated], [relax(reward=rewards[0])]))
    first = relax(0, 0, 99, reward=REWARDS if REWARDS in rewards[:20] else 1.0)
    assert_same(log.write(tmp_path / "usable", [first, *rows[:-1]], rows[-1:]))
    if len(rewards) > 1:
        assert_reduced(log.write(tmp_path / "late", rows))


def test_a_file_that_has_no_rewards_before_others_have_several_is_surveyed(tmp_path: Path) -> None:
    later = [relax(sample=index, reward={"b": 1.0, "a": 0.0} if index == 20 else None) for index in range(21)]
    assert_reduced(LOGS["relax"].write(tmp_path, later, [relax(1, reward={"a": 1.0, "b": 0.0})]))


def test_a_reward_that_is_named_and_not_there_is_an_error(tmp_path: Path) -> None:
    log, nothing = LOGS["relax"], ColumnNames(reward="nothing")
    path = log.write(tmp_path, [relax(reward=REWARDS)])
    assert assert_same(path, columns=nothing) is None
    assert_reduced(path, columns=ColumnNames(reward="for'mat"))
    assert_reduced(log.write(tmp_path / "one", [relax()]), columns=nothing)
    late = [relax(sample=index, reward={"b" if index == 20 else "a": 1.0}) for index in range(21)]
    run = assert_reduced(log.write(tmp_path / "late", late), columns=ColumnNames(reward="b"))
    assert [group.rewards.count(1.0) for group in run.groups] == [1]


def test_rewards_that_come_late_are_seen_at_every_later_look(tmp_path: Path) -> None:
    rows, so_far = [relax(sample=index, reward={"score": 1.0}) for index in range(22)], ReadSoFar()
    rows[20] |= {"reward": {"late": 1.0}, "group_index": None}
    for number in (20, 21, 22):
        LOGS["relax"].write(tmp_path, rows[:number])
        incremental, fresh = (read_run(tmp_path, rewards_only=True, so_far=looks) for looks in (so_far, None))
        assert answers(incremental) == answers(fresh)
        assert holds_rewards_alone(incremental.groups)


def test_groups_of_traces_are_named_by_the_position_of_their_prompts(tmp_path: Path) -> None:
    run = assert_reduced(LOGS["open-instruct"].write(tmp_path, TRACES, without_keys(TRACES, "logprobs")))
    assert [group.group_id for group in run.groups] == ["1:0", "1:1", "1:10", "2:0", "2:1", "2:10"]
    assert assert_same(LOGS["open-instruct"].write(tmp_path / "none", [traces() | {"step": "x"}])) is None


@pytest.mark.slow
def test_what_nemo_rl_filtered_is_noted(tmp_path: Path) -> None:
    for name in ("nemo-rl", "nemo-rl, filtered", "nemo-rl, text"):
        run = assert_reduced(LOGS[name].write(tmp_path / name, LOGS[name].rows))
        assert any("filtered" in sentence for sentence in run.source.missing) == (name == "nemo-rl, filtered")


def test_a_file_without_a_step_in_its_name_has_no_rollouts(tmp_path: Path) -> None:
    write_lines(tmp_path / "train_data_stepX.jsonl", *NEMO)
    write_lines(tmp_path / "train_data_step1.jsonl", *NEMO)
    assert assert_reduced(tmp_path).source.quarantined.num_rows == len(NEMO)
