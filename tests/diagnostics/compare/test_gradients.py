"""Gradients of compared runs: those of each run under its own advantages, at the steps that all of them saved."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope import compare_runs, measure_rank
from gradscope.errors import InputError
from gradscope.rollouts.run_folder import checkpoint_path
from gradscope.training.config import TrainConfig
from gradscope.training.train import train
from tests.training.conftest import SHORT


def make(folder: Path, **settings: Any) -> Path:
    return train(TrainConfig.from_json(SHORT | {"heldout_prompts": 0} | settings | {"output": str(folder)}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with the weights of steps 1 and 3, and one with those of all three."""
    folder = tmp_path_factory.mktemp("runs")
    return make(folder / "a", checkpoint_every=2), make(folder / "b", advantage="sign", checkpoint_every=1)


@pytest.mark.slow
def test_gradients_are_those_of_the_common_steps(runs: tuple[Path, Path]) -> None:
    comparison = compare_runs(*runs, gradients=True)
    assert comparison.metrics[-2:] == ("effective_rank", "signal_to_noise")
    for run, cell in zip(runs, comparison.cells, strict=True):
        report = measure_rank(run, steps=(1, 3), advantages=("logged",), group_sizes=(4,))
        ranks = [point.effective_rank.value for point in report.curve]
        assert cell.metrics["effective_rank"].value == pytest.approx(np.mean(np.array(ranks, dtype=float)))
        noise = [update.signal_to_noise.value for update in report.formulations if update.advantage == "logged"]
        known = [value for value in noise if value is not None]
        assert cell.metrics["signal_to_noise"].value == pytest.approx(np.mean(known))
    pairs = {pair.metric: pair for pair in comparison.pairs}
    first, second = (cell.metrics["effective_rank"].value for cell in comparison.cells)
    assert first is not None
    assert second is not None
    assert pairs["effective_rank"].difference.value == pytest.approx(second - first)


@pytest.mark.slow
def test_runs_without_a_common_step(runs: tuple[Path, Path], tmp_path: Path) -> None:
    late = shutil.copytree(runs[0], tmp_path / "late")
    shutil.rmtree(checkpoint_path(late, 0))
    early = shutil.copytree(runs[1], tmp_path / "early")
    for number in (1, 2):
        shutil.rmtree(checkpoint_path(early, number))
    with pytest.raises(InputError, match="no step in common whose gradients can be recomputed"):
        compare_runs(late, early, gradients=True)
