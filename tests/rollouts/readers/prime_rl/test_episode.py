from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.episode import read_trace, record_of, trained_traces
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def prime_row(**cells: Any) -> dict[str, Any]:
    row = json.loads((LOGS / "prime_rl/rollouts/step_3/train/all/traces.jsonl").read_text().splitlines()[0])
    return {**row, **cells}


def node(ids: Any, mask: Any, parent: int | None = 0, **cells: Any) -> dict[str, Any]:
    return {"parent": parent, "token_ids": ids, "mask": mask, "sampled": True, **cells}


def read(*nodes: Any) -> tuple[tuple[int, ...] | None, list[tuple[int, ...]]]:
    """Completion ids of the last sequence, and of those before."""
    prompt = {"message": {"role": "user", "content": "q"}, "token_ids": [5], "mask": [False]}
    found = read_trace({"nodes": [prompt, *nodes]})
    return found.tokens and found.tokens.completion_ids, [tokens.completion_ids for tokens in found.earlier]


def test_traces_that_branch_have_a_sequence_a_branch_and_one_reward(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    branching = {**trace, "nodes": [*trace["nodes"], trace["nodes"][1]]}
    run = read_run(write_lines(tmp_path / "traces.jsonl", prime_row(traces=[branching])))
    rollout = run.groups[0].rollouts[0]
    assert (rollout.reward, rollout.completion) == (1.5, "4")
    assert [one.completion_ids for one in rollout.sequences] == [rollout.completion_ids] * 2
    assert "several sequences" in run.source.inferred[0]


def test_what_was_sampled_before_a_fork_counts_once() -> None:
    assert read(node([7], [1]), node([8], [1], 1), node([9], [1], 1)) == ((9,), [(7, 8)])
    assert read(node([7], [1]), node([8], [1], 1), node([9], [0], 1)) == ((7, 8), [])  # a branch that sampled nothing


def test_lists_of_a_shared_node_are_not_asked_for_twice() -> None:
    prompt = {"token_ids": [5], "mask": [False]}
    nodes = [prompt, node([7], [1]), node([8], [1], 1, entropies=[0.5]), node([9], [1], 1, entropies=[0.25])]
    found = read_trace({"nodes": nodes})
    assert found.tokens is not None
    assert (found.tokens.entropies, found.earlier[0].entropies) == ((0.25,), None)


def test_a_part_of_the_sequences_never_passes_for_all() -> None:
    assert read(node(["x"], [1]), node([9], [1])) == (None, [])
    assert read(node([7], [1]), node([9], [1, 1])) == (None, [])


def test_only_traces_of_trained_agents_are_rollouts() -> None:
    trace = prime_row()["traces"][0]
    judge = {**trace, "agent": {"trainable": False}}
    assert trained_traces({"traces": [trace, judge, None, "text", {}]}) == [trace]
    assert trained_traces({"traces": None}) == []


def test_the_reward_is_the_sum_of_score_times_weight() -> None:
    row = prime_row()
    trace = row["traces"][0]
    record = record_of(row, trace, read_trace(trace), 3, "g", "here:1", QuarantineLog())
    assert (record.reward, record.rewards, record.prompt_id) == (1.5, {"correct": 1.0, "short": 1.0}, "math/hg7")
