from __future__ import annotations

import math
from pathlib import Path

import pytest

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


def test_prime_rl_token_export_has_the_trainers_log_probabilities_and_entropies(tmp_path: Path) -> None:
    rollout = read_run(LOGS / "prime_rl_tokens").groups[0].rollouts[0]
    assert (rollout.trainer_logprobs, rollout.entropies) == ((-0.11, -0.01), (0.4, 0.0))
    row = {"step": 1, "token_ids": [1, 2, 3], "loss_mask": [False, True, True], "advantages": [0.5] * 3}
    run = read_run(write_lines(tmp_path / "rank_0.jsonl", {**row, "trainer_logprobs": [0, None, -1.0], "entropy": [1]}))
    found = run.groups[0].rollouts[0]
    assert found.trainer_logprobs == pytest.approx((math.nan, -1.0), nan_ok=True)
    assert found.entropies is None
