"""A run under a formulation of the user's own: trained, replayed, interrupted, and gone on with."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from gradscope import measure_rank, replay_run
from gradscope.errors import UsageError
from gradscope.rollouts.run_folder import read_manifest
from gradscope.rollouts.store import read_steps, step_files
from gradscope.training.train import resume_command, train
from tests.trained import MakeRun
from tests.training.interrupted import interrupted

pytestmark = pytest.mark.slow  # whole runs of TRL

SOURCE = """import numpy as np
from gradscope import advantage_formulation

@advantage_formulation()
def robust(rewards):
    middle = np.median(rewards)
    return (rewards - middle) / (np.abs(rewards - middle).mean() + 0.125)
"""


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("own") / "my.py"
    file.write_text(SOURCE)
    return f"{file}:robust"


def test_it_trains_and_replays(short_run: MakeRun, name: str) -> None:
    run = short_run(advantage=name)
    for group in read_steps(run):
        rewards = np.array(group.rewards)
        middle = np.sort(rewards)[1:3].mean()
        expected = (rewards - middle) / (np.mean(np.abs(rewards - middle)) + 0.125)
        np.testing.assert_allclose([rollout.advantage for rollout in group.rollouts], expected, rtol=1e-6)
    manifest = read_manifest(run)
    assert manifest.advantage == name
    assert manifest.advantage_digest == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert "my.robust" in manifest.run_id
    report = replay_run(run, steps=(1, 3), advantage=name)
    assert report.verdict == "match"
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    assert {q.verdict for step in report.steps for q in step.quantities if q.name == "advantage"} == {"match"}
    ranks = measure_rank(run, steps=(1,), advantages=("logged", name))
    logged, recomputed = (update.update_norm.value for update in ranks.formulations)
    assert recomputed == pytest.approx(logged, rel=1e-6)


def test_it_goes_on_only_with_the_same_file(tmp_path: Path, name: str) -> None:
    config = interrupted(tmp_path / "run", (3, "steps"), advantage=name)
    assert resume_command(tmp_path / "run").endswith(f"--advantage {name}")
    file = Path(name.rpartition(":")[0])
    file.write_text(SOURCE + "# another line\n")
    with pytest.raises(UsageError, match=r"my\.py:robust has changed since .*run was started"):
        train(config, resume=True)
    changed = replay_run(tmp_path / "run", steps=(1,), advantage=name)
    assert [q.reason for q in changed.steps[0].quantities if q.name == "advantage"] == ["code_changed"]
    assert changed.steps[0].relative_error["grad_norm"] < 1e-5
    file.write_text(SOURCE)
    assert len(step_files(train(config, resume=True))) == 5
