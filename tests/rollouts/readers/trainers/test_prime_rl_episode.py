import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.trainers.prime_rl_episode import read_trace
from tests.conftest import LOGS
from tests.rollouts.readers.lines import rewards_of, write_lines
from tests.rollouts.readers.reduced import assert_reduced, assert_same, in_small_blocks, mutated


def prime_row(**cells: Any) -> dict[str, Any]:
    row = json.loads((LOGS / "prime_rl/rollouts/step_3/train/all/traces.jsonl").read_text().splitlines()[0])
    return {**row, **cells}


def node(ids: Any, mask: Any, parent: int | None = 0, **cells: Any) -> dict[str, Any]:
    return {"parent": parent, "token_ids": ids, "mask": mask, "sampled": True, **cells}


def read(*nodes: Any) -> tuple[tuple[int, ...] | None, list[tuple[int, ...]]]:
    """Completion ids of the last sequence, and of those before."""
    prompt = {"message": {"role": "user", "content": "q"}, "token_ids": [5], "mask": [False]}
    trace = read_trace({"nodes": [prompt, *nodes]})
    return trace.tokens and trace.tokens.completion_ids, [tokens.completion_ids for tokens in trace.earlier]


def test_traces_that_branch_have_a_sequence_a_branch_and_one_reward(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    branching = {**trace, "nodes": [*trace["nodes"], trace["nodes"][1]]}
    run = read_run(write_lines(tmp_path / "traces.jsonl", prime_row(traces=[branching])))
    rollout = run.groups[0].rollouts[0]
    assert (rollout.reward, rollout.completion) == (1.5, "4")
    assert [sequence.completion_ids for sequence in rollout.sequences] == [rollout.completion_ids] * 2
    assert "several sequences" in run.source.inferred[0]


def test_what_was_sampled_before_a_fork_counts_once() -> None:
    assert read(node([7], [1]), node([8], [1], 1), node([9], [1], 1)) == ((9,), [(7, 8)])
    assert read(node([7], [1]), node([8], [1], 1), node([9], [0], 1)) == ((7, 8), [])  # a branch that sampled nothing


def test_lists_of_a_shared_node_are_not_asked_for_twice() -> None:
    prompt = {"token_ids": [5], "mask": [False]}
    nodes = [prompt, node([7], [1]), node([8], [1], 1, entropies=[0.5]), node([9], [1], 1, entropies=[0.25])]
    read = read_trace({"nodes": nodes})
    assert read.tokens is not None
    assert (read.tokens.entropies, read.earlier[0].entropies) == ((0.25,), None)


def test_a_part_of_the_sequences_never_passes_for_all() -> None:
    assert read(node(["x"], [1]), node([9], [1])) == (None, [])
    assert read(node([7], [1]), node([9], [1, 1])) == (None, [])


def test_only_traces_of_trained_agents_are_rollouts(tmp_path: Path) -> None:
    trained = prime_row()["traces"][0]
    judge = {**trained, "agent": {"trainable": False}}
    run = read_run(write_lines(tmp_path / "traces.jsonl", prime_row(traces=[trained, judge, None, "text", {}])))
    assert rewards_of(run) == {"3:g7": (1.5,)}
    assert (run.groups[0].rollouts[0].rewards, run.groups[0].prompt_id) == ({"correct": 1.0, "short": 1.0}, "math/hg7")


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
    *(row(step, group, trace(score=i / 3)) for step in (1, 2) for group in "gh" for i in range(2)),
    row(1, "g", trace(rewards=OTHER)),
    row(1, "h", trace(nodes=longer(None, 0, 1, 2))),
]
KEYS = ("run", "work", "group", "env", "task", "traces", "rewards", "correct", "short", "b", "nodes", "agent")
UNLIKE = [
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
]


@pytest.mark.slow
def test_damaged_traces_have_the_answers_of_the_row_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, block=2000)
    num_reduced = 0
    for seed in range(20):
        below, rows = tmp_path / str(seed) / "rollouts" / "step_1" / "train", ROWS if seed % 2 else [*ROWS, *UNLIKE]
        lines = [json.dumps(row()), *mutated(rows, seed, nested=KEYS)]
        write_lines(below / "all" / "traces.jsonl", *lines, ended=seed % 3 == 0)
        if seed % 3:
            write_lines(below / "effective" / "traces.jsonl", *[row()][: seed % 3 - 1])
        run = assert_same(tmp_path / str(seed), has_texts=False)
        num_reduced += run is not None and holds_rewards_alone(run.groups)
    assert num_reduced > 14


def test_rewards_alone_of_any_episodes_are_bitwise_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, block=2000)
    lines = [json.dumps(cells) for cells in (*ROWS, *UNLIKE)]
    write_lines(tmp_path / "step_7" / "train" / "all" / "traces.jsonl", *lines)
    run = assert_reduced(tmp_path)
    assert {reward for group in run.groups for reward in group.rewards} >= {
        0.0 + score * 1.0 + 0.1 * 0.7 + 0.2 * 1.0 for score in (0.0, 1 / 3, 1.0)
    } | {2.3}
