import numpy as np
import pytest

from gradscope.diagnostics.inputs.row_questions import meets_logged
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import measure_signals, measure_tokens
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


@pytest.fixture(scope="module")
def prepared() -> PreparedStep:
    return prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)


@pytest.fixture(scope="module")
def gram(prepared: PreparedStep) -> StepGram:
    return measure_step(prepared)


@pytest.mark.slow
def test_tokens_of_a_group_add_up_to_its_rollouts_and_a_seed_draws_some(prepared: PreparedStep, gram: StepGram) -> None:
    index = np.array(gram.group_ids)
    for tokens in measure_tokens(prepared, gram, most=None):
        weights = tokens.table.logged_weights
        block = gram.policy_gram[np.ix_(index == tokens.table.group_id, index == tokens.table.group_id)]
        assert weights @ tokens.gram @ weights == pytest.approx(block.sum(), rel=1e-4)
    once, again, other = (measure_tokens(prepared, gram, most=3, seed=seed)[0].table for seed in (1, 1, 2))
    assert len(once.rows) == 3 < once.num_tokens
    assert once.rows == again.rows
    assert once.rows != other.rows


@pytest.mark.parametrize("signal", ["hidden", "logit"])
def test_signals_of_rollouts_are_sums_of_those_of_tokens(prepared: PreparedStep, gram: StepGram, signal: str) -> None:
    answer = measure_signals(prepared, gram, signal, most=512, seed=0)
    index = np.array(gram.group_ids)
    for tokens in answer.tokens:
        weights = tokens.table.score_weights
        block = answer.score_gram[np.ix_(index == tokens.table.group_id, index == tokens.table.group_id)]
        assert weights @ tokens.gram @ weights == pytest.approx(block.sum(), rel=1e-4)


@pytest.mark.parametrize(("norm", "met"), [(3.0, True), (3.00002, True), (3.0001, False), (2.9999, False)])
def test_a_norm_is_met_to_one_in_a_hundred_thousand(norm: float, met: bool) -> None:
    assert meets_logged(norm, 3.0) == met
