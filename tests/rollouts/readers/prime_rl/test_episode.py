from __future__ import annotations

from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.episode import record_of, trained_traces
from gradscope.rollouts.readers.prime_rl.trace import read_trace
from tests.rollouts.readers.prime_rl.test_traces import prime_row


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
