from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradscope.diagnostics.inputs.kept_steps import KeptStep
from gradscope.gradients.step.step_gram import StepGram
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.made_up_runs import run_of
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy


@pytest.fixture(scope="module")
def gram() -> StepGram:
    return measured_step(tiny_policy("gpt2_tied_conv1d"), tiny_groups(), DAPO)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose weights are a folder of two files; only one of them shapes a gradient."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "optimizer.bin").write_bytes(b"moments")
    groups = tuple(replace(group, step=1) for group in tiny_groups())
    return replace(run_of(*groups), weights=(WeightsRef(num_updates=0, path=str(folder), kind="full"),))


class Keeper:
    """Keeps one step in a folder and remembers what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def kept(self, run: Run, choices: object = "float32") -> KeptStep:
        return KeptStep(self.folder, run, 1, DAPO, choices, self.said.append)


USED = "step 1 was finished before and is used again"
ANEW = "step 1 is computed again: what was kept is of other inputs or options"


def test_nothing_is_said_where_nothing_was_kept(tmp_path: Path, run: Run) -> None:
    keeper = Keeper(tmp_path / "kept")
    assert keeper.kept(run).read() is None
    assert keeper.said == []


def test_a_step_comes_back_for_the_same_question(tmp_path: Path, run: Run, gram: StepGram) -> None:
    keeper = Keeper(tmp_path / "kept")
    keeper.kept(run).write(gram)
    again = keeper.kept(run).read()
    assert again is not None
    assert np.array_equal(again.gram, gram.gram)
    (tmp_path / "weights" / "optimizer.bin").write_bytes(b"other moments")
    assert keeper.kept(run).read() is not None
    assert keeper.said == [USED, USED]


def test_other_choices_rewards_or_weights_make_it_anew(tmp_path: Path, run: Run, gram: StepGram) -> None:
    keeper = Keeper(tmp_path / "kept")
    keeper.kept(run).write(gram)
    first, *others = run.groups
    rewarded = replace(first, rollouts=tuple(replace(rollout, reward=9.0) for rollout in first.rollouts))
    assert keeper.kept(run, "bfloat16").read() is None
    assert keeper.kept(replace(run, groups=(rewarded, *others))).read() is None
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"other weights")
    assert keeper.kept(run).read() is None
    assert keeper.said == [ANEW] * 3
