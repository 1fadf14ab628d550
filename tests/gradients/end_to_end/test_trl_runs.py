"""A stranger's number: the norm of the whole step's gradient is what TRL logged."""

import numpy as np
import pytest

from gradscope.gradients.model.policy import load_measured_policy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import measure_weight_spectra
from tests.gradients.models import measured_step
from tests.gradients.runs import groups_of, logged_grad_norm, settings_of, weights_before

pytestmark = pytest.mark.slow  # the runs of shared/data, recomputed


def measured(folder, weights, step, **options):
    """A step at the weights before another one; `exact` ids are those that were sampled."""
    policy = load_measured_policy(weights_before(folder, weights), device="cpu")
    groups = groups_of(folder, step, exact=options.pop("exact", True))
    return measured_step(policy, groups, Objective.from_settings(settings_of(folder)), **options)


@pytest.mark.parametrize(
    ("step", "options"),
    [
        *((step, {"engine": "stream"}) for step in (1, 6, 11, 16)),
        (6, {"engine": "stream", "verify": "all"}),
        (6, {"engine": "loop", "verify": "all"}),
        (16, {"engine": "loop"}),
    ],
)
@pytest.mark.parametrize("run", ["trl_full", "trl_lora"])
def test_step_gradient_has_the_logged_norm(shared_data, run, step, options):
    folder = shared_data / "runs" / run
    measurement = measured(folder, step, step, **options)
    assert measurement.num_inferred_ids == 0
    assert np.sqrt(measurement.logged_gram.sum()) == pytest.approx(logged_grad_norm(folder, step), rel=1e-5)
    assert (measurement.kl_gram is None) == (run == "trl_full")


@pytest.mark.parametrize(
    ("run", "step", "off"),
    [
        ("trl_full", 1, 0.018),
        ("trl_full", 6, 0.0),
        ("trl_full", 11, 0.0),
        ("trl_full", 16, 0.007),
        ("trl_lora", 1, 0.003),
        ("trl_lora", 6, 0.16),
        ("trl_lora", 11, 0.011),
        ("trl_lora", 16, 0.039),
    ],
)
def test_retokenized_text_is_off_by_what_was_measured_apart(shared_data, run, step, off):
    folder = shared_data / "runs" / run
    measurement = measured(folder, step, step, exact=False)
    logged = logged_grad_norm(folder, step)
    error = abs(np.sqrt(measurement.logged_gram.sum()) - logged) / logged
    assert error == pytest.approx(off, rel=0.2, abs=1e-5)
    assert measurement.num_inferred_ids == measurement.num_rollouts
    assert any("re-tokenized" in note for note in measurement.notes)


def test_weights_after_the_update_do_not_reproduce_it(shared_data):
    folder = shared_data / "runs" / "trl_full"
    measurement = measured(folder, 6, 5)
    assert np.sqrt(measurement.logged_gram.sum()) != pytest.approx(logged_grad_norm(folder, 5), rel=0.01)


def test_kl_alone_moves_a_step_whose_groups_are_all_degenerate(shared_data):
    """Step 7's own weights are not on disk; at those of step 6 its policy part is zero all the same."""
    measurement = measured(shared_data / "runs" / "trl_lora", 6, 7)
    assert measurement.policy_gram.sum() == 0.0
    assert measurement.frac_kl == pytest.approx(1.0)
    assert 1e-5 < np.sqrt(measurement.logged_gram.sum()) < 1e-3


def test_weight_spectra_hold_the_step_gradient(shared_data):
    folder = shared_data / "runs" / "trl_lora"
    policy = load_measured_policy(weights_before(folder, 11), device="cpu")
    objective = Objective.from_settings(settings_of(folder))
    spectra = measure_weight_spectra(prepare_step(policy, groups_of(folder, 11), objective))
    norm = np.sqrt(sum(float(np.square(spectrum.singular_values).sum()) for spectrum in spectra))
    assert norm == pytest.approx(logged_grad_norm(folder, 11), rel=1e-5)
    assert [spectrum.tensor for spectrum in spectra] == list(policy.trainable)
