import json
import shutil
from pathlib import Path

import pytest

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY

LOG = REPOSITORY / "fixtures/logs/tunix"


@pytest.mark.parametrize("path", [LOG, LOG / "trajectories", f"{LOG}/trajectories/step*/*/*/metadata.json"])
def test_trajectories_of_a_prompt_at_a_step_are_a_group(path: Path | str) -> None:
    run = read_run(path)
    assert run.source.format == "tunix"
    rewards = {group.group_id: group.rewards for group in run.groups}
    assert rewards == {"p0": (1.0, 0.0), "p1": (0.0, 0.0), "1:p0": (1.0, 1.0), "1:p2": (0.5, 1.0)}
    first, second = run.groups[0].rollouts
    assert (first.prompt, first.completion, first.completion_ids) == ("p0?", "answer 0", (3, 4))
    assert (first.status, second.status) == ("completed", "error")
    assert run.groups[2].rollouts[1].policy_versions == (0, 1)
    assert run.source.missing == ()


def test_a_log_without_tokens_says_so(tmp_path: Path) -> None:
    folder = shutil.copytree(LOG, tmp_path / "log")
    for file in folder.rglob("metadata.json"):
        cells = json.loads(file.read_text())
        file.write_text(json.dumps({name: cell for name, cell in cells.items() if "tokens" not in name}))
    run = read_run(folder)
    assert run.groups[0].rollouts[0].completion_ids is None
    assert "without token ids" in run.source.missing[0]
