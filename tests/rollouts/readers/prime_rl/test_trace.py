from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def prime_row(**cells: Any) -> dict[str, Any]:
    row = json.loads((LOGS / "prime_rl/rollouts/step_3/train/all/traces.jsonl").read_text().splitlines()[0])
    return {**row, **cells}


def test_prime_rl_traces_that_branch_lose_their_tokens_and_keep_their_reward(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    branching = {**trace, "nodes": [*trace["nodes"], trace["nodes"][1]]}
    run = read_run(write_lines(tmp_path / "traces.jsonl", prime_row(traces=[branching])))
    rollout = run.groups[0].rollouts[0]
    assert (rollout.reward, rollout.completion, rollout.completion_ids) == (1.5, "4", None)
    assert "branch into several sequences" in run.source.missing[0]
