"""Reduced traces of prime-rl have the answers of the row reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.prime_rl.columns import named_in, stream_group
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from tests.rollouts.readers.reduced import answers, assert_same, in_small_blocks, mutated, write_lines


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, block=2000)


def trace(name: str = "t", score: Any = 1.0, **cells: Any) -> dict[str, Any]:
    nodes = [
        {"message": {"role": "user", "content": "?"}, "token_ids": [5, 9], "mask": [False, False]},
        {
            "parent": 0,
            "sampled": True,
            "message": {"role": "assistant", "content": "4"},
            "token_ids": [7],
            "mask": [True],
        },
    ]
    rewards = {"correct": {"score": score, "weight": 1.0}, "short": {"score": 0.1, "weight": 0.7}, "b": {"score": 0.2}}
    return {"id": name, "agent": {"id": "s", "trainable": True}, "rewards": rewards, "nodes": nodes} | cells


def row(step: int = 1, group: str = "g", *traces: dict[str, Any], **cells: Any) -> dict[str, Any]:
    usual = {
        "env": {"id": "math"},
        "group": {"id": group},
        "task": {"data": {"prompt": group}, "hash": f"h{group}"},
        "run": {"type": "train", "work": {"type": "train", "step": step}},
        "ok": True,
        "traces": list(traces) or [trace()],
    }
    return usual | cells


def longer(*parents: Any) -> list[dict[str, Any]]:
    """Messages with these parents."""
    return [{"message": {"role": "user"}} | ({} if parent is None else {"parent": parent}) for parent in parents]


OTHER = {"exact": {"score": True, "weight": 2}, "correct": {"score": 0.3}}
ROWS = [
    *(row(step, group, trace(score=at / 3)) for step in (1, 2) for group in "gh" for at in range(2)),
    row(1, "g", trace(rewards=OTHER)),
    row(1, "h", trace(nodes=longer(None, 0, 1, 2))),
]
KEYS = ("run", "work", "group", "env", "task", "traces", "rewards", "correct", "short", "b", "nodes", "agent")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, [*ROWS, row(1, "g", trace("a"), trace("b"))]], ids=["alone", "agents"])
def test_damaged_traces_have_the_answers_of_the_row_reader(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    num_reduced = 0
    for seed in range(30):
        folder = tmp_path / str(seed) / "rollouts"
        below = folder / "step_1" / "train"
        write_lines(below / "all" / "traces.jsonl", [json.dumps(row()), *mutated(rows, 9 * seed, within=KEYS)])
        write_lines(
            folder / "step_2/train/all/traces.jsonl", mutated(rows, 9 * seed + 1, within=KEYS), ended=seed % 2 == 0
        )
        if seed % 3:
            write_lines(below / "effective" / "traces.jsonl", [json.dumps(row())][: seed % 3 - 1])
        run = assert_same(folder.parent, has_notes=False)
        num_reduced += run is not None and holds_rewards_alone(run.groups)
    assert num_reduced > 20


def test_proper_traces_are_reduced_and_their_rewards_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    write_lines(tmp_path / "traces.jsonl", [json.dumps(cells) for cells in ROWS])
    run = assert_same(tmp_path / "traces.jsonl", is_reduced=True)
    assert run is not None
    assert {reward for group in run.groups for reward in group.rewards} == {
        0.0 + score * 1.0 + 0.1 * 0.7 + 0.2 * 1.0 for score in (0.0, 1 / 3, 1.0)
    } | {2.3}


@pytest.mark.parametrize(
    "unlike",
    [
        row(1, "g", trace(nodes=longer(None, 0, 0))),
        row(1, "g", trace(nodes=longer(None, None, 0))),
        row(1, "g", trace(nodes=longer(None, 0, 2, 1))),
        row(1, "g", trace(nodes=longer(None, 0, 1.0))),
        row(1, "g", trace(nodes=longer(None))),
        row(1, "g", trace(nodes=None)),
        row(1, "g", trace(agent={"trainable": False})),
        row(1, "g", trace(agent={"trainable": None})),
        row(1, "g", trace(), trace(agent={"trainable": False})),
        row(1, "g", trace("a"), trace("b")),
        row(1, "g", trace(rewards={})),
        row(1, "g", trace(rewards={"late": {"score": 1}})),
        row(1, "g", trace(rewards={"correct": {"score": 1, "weight": None}})),
        row(1, "g", trace(score=True)),
        row(1, "g", trace(score=float("inf"))),
        row(1, "", trace()),
        row(1, "g", task={"data": [1]}),
        row(1, "g", env=None),
        row(run={"work": {}}),
    ],
)
def test_an_episode_that_is_unlike_the_others(tmp_path: Path, unlike: dict[str, Any]) -> None:
    path = tmp_path / "step_7" / "train" / "all" / "traces.jsonl"
    write_lines(path, [json.dumps(cells) for cells in (*ROWS, unlike)])
    assert_same(tmp_path, is_reduced=True)


def test_rewards_that_come_late_are_seen(tmp_path: Path) -> None:
    late = row(1, "g", trace(rewards={"late": {"score": 1}}))
    write_lines(tmp_path / "traces.jsonl", [json.dumps(cells) for cells in (*[row()] * 20, late)])
    assert_same(tmp_path / "traces.jsonl", is_reduced=True)


def test_rewards_that_come_late_are_seen_at_every_later_look(tmp_path: Path) -> None:
    file, so_far = tmp_path / "traces.jsonl", ReadSoFar()
    lines = [json.dumps(cells) for cells in (*[row()] * 20, row(1, "g", trace(rewards={"late": {"score": 1}})), row())]
    for number in (20, 21, 22):
        write_lines(file, lines[:number])
        again, anew = (read_run(file, rewards_only=True, so_far=known) for known in (so_far, None))
        assert answers(again) == answers(anew)


@pytest.mark.parametrize(("group", "prompt"), [("g", "math/h"), ("", "/"), ("1:g", "2:h"), ("é\u0000😀", "\ud800")])
def test_a_group_of_the_stream_is_called_by_its_name_and_its_prompt(group: str, prompt: str) -> None:
    assert named_in(stream_group(group, prompt)) == group
