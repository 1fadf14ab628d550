from __future__ import annotations

from pathlib import Path

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def test_ragen_groups_by_the_metadata() -> None:
    run = read_run(LOGS / "ragen")
    assert rewards_of(run) == {"0": (1.5, -0.2), "1": (-0.2, -0.2)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("maze 0", "up\nwall\nleft", {"success": 1.0})
    assert "evaluation rollouts" in run.source.missing[0]


def test_ragen_rows_without_a_group_are_set_aside(tmp_path: Path) -> None:
    row = {"messages": [], "metadata": {"group_id": 3, "total_reward": 1.0}}
    run = read_run(write_lines(tmp_path / "val_rollouts_1.jsonl", row, {**row, "metadata": []}))
    assert set_aside(run) == {"metadata.group_id is missing": 1}
