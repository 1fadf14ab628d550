"""A gradient beside the change of the weights that followed it, on matrices that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gradscope.diagnostics.rank.spectrum import ranks_of
from gradscope.diagnostics.rank.weights.gradient_beside_update import gradients_and_updates
from gradscope.estimate import Estimate
from gradscope.findings.rank.weights import gradient_update_findings
from gradscope.results.rank import GradientSpectrum, SpectrumLabel
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import run_of as made_up
from tests.diagnostics.rank.weights.test_updates import NAME, matrices, model


def spectrum(step: int, tensor: str = NAME) -> GradientSpectrum:
    values = np.array([1.0, 1.0, 0.0, 0.0])
    return GradientSpectrum(
        label=SpectrumLabel(step=step, rows="weight", advantage="logged", group_size=4, tensor=tensor, shape=(6, 4)),
        singular_values=tuple(values),
        noise_floor=0.0,
        ranks=ranks_of(values, 0.0),
        nulls={"gaussian": Estimate.exact(3.5)},
    )


def run_of(path: Path, *times: int) -> Run:
    """Checkpoints that move along one direction."""
    start, direction = matrices()
    weights = tuple(model(path / f"{t}", t, matrix=start + 0.01 * t * direction) for t in times)
    return replace(made_up(), weights=weights)


def test_a_gradient_meets_the_change_up_to_the_next_checkpoint(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0, 10, 25)
    first, second = gradients_and_updates(run, [spectrum(1), spectrum(11), spectrum(26), spectrum(1, "lm_head.weight")])
    assert [(one.step, one.first, one.last) for one in (first, second)] == [(1, 0, 10), (11, 10, 25)]
    assert first.gradient_rank.value == pytest.approx(2.0)
    assert first.gradient_top_energy.value == pytest.approx(0.5)
    assert first.update_rank.value == pytest.approx(1.0, abs=1e-3)
    assert first.update_top_energy.value == pytest.approx(1.0)
    assert first.gaussian.value == 3.5
    (sentence,) = gradient_update_findings((first, second))
    assert "step 11 has effective rank 2.0 on average over 1 weights" in sentence
    assert "their change from 10 to 25 updates 1.0" in sentence


def test_weights_that_stand_still_have_no_rank_beside_the_gradient(tmp_path: Path) -> None:
    still = torch.ones(6, 4)
    weights = (model(tmp_path / "0", 0, matrix=still), model(tmp_path / "9", 9, matrix=still))
    run = replace(run_of(tmp_path), weights=weights)
    (one,) = gradients_and_updates(run, [spectrum(1)])
    assert one.update_rank.undefined is not None
    assert one.update_top_energy.undefined is not None
    assert gradient_update_findings((one,)) == ()
    assert gradient_update_findings(()) == ()


def test_adapters_and_absent_weights_have_no_pairs(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0, 10)
    adapters = tuple(replace(weights, kind="adapter") for weights in run.weights)
    assert gradients_and_updates(replace(run, weights=adapters), [spectrum(1)]) == ()
    assert gradients_and_updates(run, [spectrum(5)]) == ()
