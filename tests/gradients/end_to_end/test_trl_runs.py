"""Steps of a real TRL run with adapters: what their norms hold beyond the replay of each."""

from pathlib import Path

import numpy as np
import pytest

from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.model.policy import load_measured_policy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.directions import measure_weight_spectra
from gradscope.gradients.step.measure import measure_step
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run

pytestmark = pytest.mark.slow  # a run of shared/data, recomputed


def prepared(folder: Path, step: int, *, weights_of: int | None = None) -> tuple[PreparedStep, float]:
    """A step at its own weights, or at those of another one, and the norm that TRL logged."""
    run = read_run(
        folder / "run", ReadOptions(initial_weights=folder / "init_adapter", trainer_args=folder / "RUN.json")
    )
    padding = TrainerPadding.from_settings(run.settings)
    policy = load_measured_policy(run.weights_before(weights_of or step), device="cpu", padding=padding)
    made = prepare_step(policy, run.groups_at(step), Objective.from_settings(run.settings))
    return made, run.metrics[step]["grad_norm"]


def test_rows_by_stream_checked_in_every_batch_have_the_logged_norm(shared_data):
    step, logged = prepared(shared_data / "runs" / "trl_lora", 6)
    result = measure_step(step, engine="stream", verify="all")
    assert np.sqrt(result.logged_gram.sum()) == pytest.approx(logged, rel=1e-5)
    assert (result.num_inferred_ids, result.kl_gram is None) == (0, False)


def test_kl_alone_moves_a_step_whose_groups_are_all_degenerate(shared_data):
    """Step 7's own weights are not on disk; at those of step 6 its policy part is zero all the same."""
    step, _ = prepared(shared_data / "runs" / "trl_lora", 7, weights_of=6)
    result = measure_step(step)
    assert result.policy_gram.sum() == 0.0
    assert result.parts["kl"] == pytest.approx((1.0, 1.0))
    assert 1e-5 < np.sqrt(result.logged_gram.sum()) < 1e-3


def test_weight_spectra_hold_the_step_gradient(shared_data):
    step, logged = prepared(shared_data / "runs" / "trl_lora", 11)
    spectra = measure_weight_spectra(step)
    norm = np.sqrt(sum(float(np.square(spectrum.singular_values).sum()) for spectrum in spectra))
    assert norm == pytest.approx(logged, rel=1e-5)
    assert [spectrum.tensor for spectrum in spectra] == list(step.policy.trainable)
