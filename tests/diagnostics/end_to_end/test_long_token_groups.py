"""A group of more tokens than are sampled: every way to measure it, held to the exact matrix by the error it states."""

import numpy as np
import pytest

from gradscope.diagnostics.rank.rollout_spectra import token_spectra
from gradscope.diagnostics.rank.rows import StepRows, step_rows
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.results.rank import GradientSpectrum
from gradscope.rollouts.groups import Rollout, RolloutGroup
from tests.gradients.models import DAPO, VOCAB, measured_step, tiny_policy

NUM_ROLLOUTS, LENGTH = 6, 24

Long = tuple[MeasuredPolicy, list[RolloutGroup], StepGram, StepRows, GradientSpectrum]


def spectrum(long: Long, **options: object) -> GradientSpectrum:
    policy, groups, step, rows = long[:4]
    tokens = measure_tokens(prepare_step(policy, groups, DAPO), step, **options)
    return token_spectra(rows, tokens, "logged", None, seed=0)[0][0]


@pytest.fixture(scope="module")
def long() -> Long:
    """The longest rollouts that the tiny model has positions for, and the exact spectrum of their tokens."""
    rng = np.random.default_rng(0)
    rollouts = tuple(
        Rollout(
            group_id="g",
            sample=sample,
            row=sample,
            prompt="",
            completion="",
            prompt_ids=(1, 2, 3),
            completion_ids=tuple(rng.integers(0, VOCAB, LENGTH).tolist()),
            reward=float(sample % 2),
            advantage=2.0 * (sample % 2) - 1.0,
        )
        for sample in range(NUM_ROLLOUTS)
    )
    policy = tiny_policy("llama_untied_biases")
    groups = [RolloutGroup(step=1, group_id="g", prompt_id="p", rollouts=rollouts)]
    step = measured_step(policy, groups, DAPO)
    rows = step_rows(step)
    (exact,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    assert exact.num_columns == policy.num_parameters
    return policy, groups, step, rows, token_spectra(rows, [exact], "logged", None, seed=0)[0][0]


@pytest.mark.slow
def test_no_value_of_a_sample_is_above_that_of_the_whole(long: Long) -> None:
    """Its Gram matrix is a part of the whole's, so their eigenvalues interlace."""
    sampled, truth = spectrum(long, most=48, seed=1), long[4]
    assert sampled.tokens.frac_seen == pytest.approx(1 / 3)
    assert (truth.tokens.method, truth.label.shape[0]) == ("exact", NUM_ROLLOUTS * LENGTH)
    assert np.all(np.array(sampled.singular_values) <= np.array(truth.singular_values[:48]) * (1 + 1e-5))
    assert sampled.ranks.effective_rank.value <= 48


@pytest.mark.slow
@pytest.mark.parametrize("num_buckets", [256, 2048])
def test_a_sketch_is_within_a_few_times_its_error(long: Long, num_buckets: int) -> None:
    sketched, truth = spectrum(long, num_buckets=num_buckets), long[4]
    exact, energies = np.array(truth.singular_values) ** 2, np.array(sketched.singular_values) ** 2
    # stated is the Frobenius norm in root mean square; no eigenvalue is off by more than the norm
    assert np.max(np.abs(energies - exact)) / exact.sum() < 1.5 * sketched.tokens.energy_error
    assert sketched.tokens.energy_error < (2 / num_buckets) ** 0.5
