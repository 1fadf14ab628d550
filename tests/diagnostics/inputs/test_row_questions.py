from __future__ import annotations

import numpy as np
import pytest

from gradscope.diagnostics.inputs.row_questions import TokenQuestion, WeightQuestion
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


@pytest.fixture(scope="module")
def prepared() -> PreparedStep:
    return prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)


@pytest.fixture(scope="module")
def gram(prepared: PreparedStep) -> StepGram:
    return measure_step(prepared)


def test_weights_have_the_energy_of_the_whole_gradient(prepared: PreparedStep, gram: StepGram) -> None:
    spectra = WeightQuestion().measure(prepared, gram)
    matrices = {name: p for name, p in prepared.policy.model.named_parameters() if p.ndim == 2}
    assert {spectrum.tensor for spectrum in spectra} == set(matrices)
    energy = sum(float(np.sum(spectrum.singular_values**2)) for spectrum in spectra)
    assert 0 < energy <= gram.policy_gram.sum() * (1 + 1e-5)


def test_all_tokens_of_a_group_add_up_to_its_rollouts(prepared: PreparedStep, gram: StepGram) -> None:
    index = np.array(gram.group_ids)
    for tokens in TokenQuestion(most=None).measure(prepared, gram):
        weights = tokens.table.logged_weights
        block = gram.policy_gram[np.ix_(index == tokens.table.group_id, index == tokens.table.group_id)]
        assert weights @ tokens.gram @ weights == pytest.approx(block.sum(), rel=1e-4)


def test_the_seed_draws_tokens_where_a_group_has_more(prepared: PreparedStep, gram: StepGram) -> None:
    once, again, other = (TokenQuestion(most=3, seed=seed).measure(prepared, gram)[0].table for seed in (1, 1, 2))
    assert len(once.rows) == 3 < once.num_tokens
    assert once.rows == again.rows
    assert once.rows != other.rows
