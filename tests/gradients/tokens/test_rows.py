import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.model.policy import token_sequences
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.tokens.lockstep import lockstep_gram
from gradscope.gradients.tokens.rows import TokenRow, _sample_tokens, chunks_of, token_loop_rows
from tests.gradients import models
from tests.gradients.tokens.test_measure import measured


def test_every_token_is_equally_likely_to_be_drawn():
    rows = [TokenRow(sequence=0, position=position) for position in range(6)]
    drawn = [row.position for seed in range(600) for row in _sample_tokens(rows, 2, seed)]
    assert np.all(np.abs(np.bincount(drawn, minlength=6) - 200) < 60)
    assert _sample_tokens(rows, 9, 0) == tuple(rows)
    with pytest.raises(ValueError, match="at least one token is needed"):
        _sample_tokens(rows, 0, 0)


def test_chunks_are_neighbors_of_one_sequence_and_end_with_their_last_token():
    sequences = [models.sequence_of((1,), (2, 3, 4, 5), sample=sample) for sample in range(2)]
    indices = [(1, 0), (0, 3), (0, 0), (0, 1)]
    rows = [TokenRow(sequence=sequence, position=position) for sequence, position in indices]
    first, second, third = chunks_of(rows, sequences, 2)
    assert (first.rows, first.positions, first.sequence, first.prefix.completion_ids) == ((2, 3), (0, 1), 0, (2, 3))
    assert (second.rows, second.positions, second.prefix.length) == ((1,), (3,), 5)
    assert (third.rows, third.sequence, third.prefix.mask) == ((0,), 1, (True,))


def test_a_model_without_a_list_of_layers_goes_the_slow_way():
    policy, groups = models.tiny_policy("qwen3_gqa_norms"), models.tiny_groups(1, 2)
    policy.model.config.num_hidden_layers = 7
    chunks = chunks_of([TokenRow(sequence=0, position=0)], token_sequences(policy, groups))
    accumulator = GramAccumulator(1, policy.device)
    assert lockstep_gram(policy.model, policy.trainable, chunks, 1.0, accumulator) == frozenset(policy.trainable)
    token_loop_rows(policy.model, policy.trainable, chunks, 1.0, accumulator.add_rows)
    assert models.relative_gram(accumulator.gram.numpy(), models.naive_token_rows(policy, groups)[:1]) < 1e-5


def test_weights_hold_per_token_advantages_ratio_and_mask():
    policy, groups = models.tiny_policy("llama_untied_biases"), models.tiny_groups(1, 2)
    first, second = groups[0].rollouts
    first = replace(first, token_advantages=tuple(np.linspace(-1, 1, len(first.completion_ids))))
    second = replace(second, mask=(False,) + (True,) * (len(second.completion_ids) - 1))
    groups = [replace(groups[0], rollouts=(first, second))]
    (gram,) = measured(policy, groups)
    counted = len(first.completion_ids) + len(second.completion_ids) - 1
    assert gram.table.num_tokens == counted
    np.testing.assert_allclose(gram.table.score_weights, 1 / counted)
    expected = np.concatenate([first.token_advantages, [second.advantage] * (len(second.completion_ids) - 1)])
    np.testing.assert_allclose(gram.table.logged_weights, -expected / counted, rtol=1e-6)


def test_a_group_that_is_all_masked_has_no_matrix_and_one_without_advantages_no_logged_weights():
    first, second = models.tiny_groups(2, 2)
    silent = models.changed([first], mask=lambda rollout: (False,) * len(rollout.completion_ids))
    (gram,) = measured(models.tiny_policy("llama_untied_biases"), [*silent, *models.changed([second], advantage=None)])
    assert gram.table.group_id == second.group_id
    assert set(gram.table.rollouts) == {2, 3}
    assert gram.table.logged_weights is None


def test_importance_ratios_and_clip_are_factors_of_a_token():
    policy, groups = models.tiny_policy("llama_untied_biases"), models.tiny_groups(1, 2)
    step = models.measured_step(policy, groups, models.DAPO)
    sampled = models.changed(groups, advantage=1.0, logprobs=lambda rollout: tuple(step.logprobs[rollout.row] - 0.3))
    objective = Objective(loss_type="dapo", importance_ratio=True, epsilon_low=0.2, epsilon_high=0.2)
    (gram,) = measured(policy, sampled, objective)
    np.testing.assert_allclose(gram.table.score_weights, np.exp(0.3) / gram.table.num_tokens, rtol=1e-5)
    assert gram.table.logged_weights is not None
    assert not gram.table.logged_weights.any()  # a ratio of 1.35 is beyond the clip
