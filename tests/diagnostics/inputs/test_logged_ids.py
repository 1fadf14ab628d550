from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.diagnostics.inputs.logged_ids import without_ids
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY

LOGS = REPOSITORY / "fixtures" / "logs"


@pytest.mark.parametrize(
    ("log", "step", "said"),
    [("verl_v1", 1, "lost the chat template's markers"), ("prime_rl", 3, None), ("trl/minimal", 1, None)],
)
def test_only_logs_without_ids_of_other_trainers_are_refused(log: str, step: int, said: str | None) -> None:
    path = LOGS / log if (LOGS / log).exists() else next(Path(LOGS / "trl").iterdir())
    reason = without_ids(read_run(path), step)
    assert (reason is None) == (said is None)
    if reason is not None and said is not None:
        assert said in str(reason)
        assert reason.cause == "ids_missing"
        assert "rollout_log_probs" in reason.advice
