from __future__ import annotations

from pathlib import Path

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import set_aside, write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def test_prime_rl_token_export_has_tokens_and_says_that_rewards_are_elsewhere() -> None:
    run = read_run(LOGS / "prime_rl_tokens")
    assert [(group.step, group.rewards) for group in run.groups] == [(3, (None, None))]
    rollout = run.groups[0].rollouts[1]
    assert (rollout.completion_ids, rollout.advantage, rollout.logprobs) == ((12, 2), -0.5, (-0.1, -0.01))
    assert "has no rewards" in run.source.missing[0]


def test_prime_rl_token_export_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    row = {"step": 1, "token_ids": [1, 2], "loss_mask": [False, True], "advantages": [0.5, 0.5]}
    rows = [row, {**row, "step": None}, {**row, "loss_mask": [False, False]}]
    run = read_run(write_lines(tmp_path / "rank_0.jsonl", *rows))
    assert set_aside(run) == {"the step is not a whole number": 1, "no token of the row was sampled": 1}
