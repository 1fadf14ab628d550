from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from gradscope.errors import UsageError, VerificationError
from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.model.tokenize import token_sequences
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens import measure
from gradscope.gradients.tokens.lockstep import lockstep_gram
from gradscope.gradients.tokens.loop import token_loop_rows
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.gradients.tokens.rows import TokenRow, chunks_of, sample_tokens
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
    break_rule,
    measured_step,
    naive_rows,
    naive_token_rows,
    policy_of,
    relative,
    tiny_groups,
    tiny_policy,
)


def measured(policy, groups, objective=DAPO, **options):
    prepared = prepare_step(policy, groups, objective)
    return measure_tokens(prepared, measure_step(prepared), **options)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_token_gram_equals_one_float64_backward_per_token(name, lora):
    policy, groups = tiny_policy(name, lora=lora), tiny_groups(1, 3)
    rows = naive_token_rows(policy, groups)
    (found,) = measured(policy, groups)
    assert relative(found.gram, rows @ rows.T) < 1e-5
    assert found.table.num_tokens == len(rows)
    assert found.slow_parameters == ()
    assert found.num_parameters == rows.shape[1]
    assert found.verification.row_error < found.verification.tolerance
    assert found.verification.sum_error is not None


def test_token_gram_in_float64_is_exact_to_rounding():
    policy, groups = tiny_policy("gpt2_tied_conv1d", dtype=torch.float64), tiny_groups(1, 3)
    rows = naive_token_rows(policy, groups)
    assert relative(measured(policy, groups)[0].gram, rows @ rows.T) < 1e-12


@pytest.mark.parametrize("size", [1, 2, 100])
def test_chunks_change_nothing(size):
    policy, groups = tiny_policy("qwen3_gqa_norms", dtype=torch.float64), tiny_groups(1, 3)
    sequences = token_sequences(policy, groups)
    rows = [TokenRow(sequence=i, position=t) for i, s in enumerate(sequences) for t in range(len(s.completion_ids))]
    accumulator = GramAccumulator(len(rows), policy.device)
    slow = lockstep_gram(policy.model, policy.trainable, chunks_of(rows, sequences, size), 1.0, accumulator)
    expected = naive_token_rows(policy, groups)
    assert slow == frozenset()
    assert relative(accumulator.gram.numpy(), expected @ expected.T) < 1e-12


def test_the_rows_of_a_rollout_add_up_to_its_score_vector():
    policy, groups = tiny_policy("gpt2_tied_conv1d", dtype=torch.float64), tiny_groups(1, 3)
    (found,) = measured(policy, groups)
    mixing = (found.table.rollouts == np.arange(3)[:, None]) * found.table.score_weights
    rows = naive_rows(policy, groups, 1.0 / found.table.num_tokens)
    assert relative(mixing @ found.gram @ mixing.T, rows @ rows.T) < 1e-12


def test_a_decomposition_by_position_is_not_the_token_rows():
    """Rows of one backward pass, position by position: their sum is the same, their matrix is another."""
    policy, groups = tiny_policy("llama_untied_biases", dtype=torch.float64), tiny_groups(1, 3)
    rollout, model = max(groups[0].rollouts, key=lambda rollout: len(rollout.completion_ids)), policy.model
    ids, start = torch.tensor([rollout.prompt_ids + rollout.completion_ids]), len(rollout.prompt_ids)
    kept = {}
    module = model.model.layers[0].self_attn.k_proj
    handle = module.register_forward_hook(lambda _, given, out: kept.update(given=given[0], out=out))
    log_pi = torch.log_softmax(model(input_ids=ids).logits[0, start - 1 : -1], -1)
    handle.remove()
    chosen = log_pi.gather(1, ids[0, start:, None]).squeeze(1)
    together, *alone = (
        torch.autograd.grad(loss, [kept["out"], module.weight], retain_graph=True) for loss in (chosen.sum(), *chosen)
    )
    by_position = torch.einsum("to,ti->toi", together[0][0], kept["given"][0]).flatten(1).detach()
    by_token = torch.stack([grad.flatten() for _, grad in alone])
    torch.testing.assert_close(by_position.sum(0), by_token.sum(0))
    predicting = by_position[start - 1 : -1]
    assert len(predicting) == len(by_token) > 3
    assert relative((predicting @ predicting.T).numpy(), (by_token @ by_token.T).numpy()) > 0.1


def test_weights_hold_per_token_advantages_ratio_and_mask():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    first, second = groups[0].rollouts
    first = dataclasses.replace(first, token_advantages=tuple(np.linspace(-1, 1, len(first.completion_ids))))
    second = dataclasses.replace(second, mask=(False,) + (True,) * (len(second.completion_ids) - 1))
    groups = [dataclasses.replace(groups[0], rollouts=(first, second))]
    (found,) = measured(policy, groups)
    counted = len(first.completion_ids) + len(second.completion_ids) - 1
    assert found.table.num_tokens == counted
    np.testing.assert_allclose(found.table.score_weights, 1 / counted)
    expected = np.concatenate([first.token_advantages, [second.advantage] * (len(second.completion_ids) - 1)])
    np.testing.assert_allclose(found.table.logged_weights, -expected / counted, rtol=1e-6)


def test_without_logged_advantages_there_are_no_logged_weights():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    rollouts = tuple(dataclasses.replace(rollout, advantage=None) for rollout in groups[0].rollouts)
    (found,) = measured(policy, [dataclasses.replace(groups[0], rollouts=rollouts)])
    assert found.table.logged_weights is None


def test_a_group_that_is_all_masked_has_no_matrix():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(2, 2)
    silent = tuple(
        dataclasses.replace(rollout, mask=(False,) * len(rollout.completion_ids)) for rollout in groups[0].rollouts
    )
    found = measured(policy, [dataclasses.replace(groups[0], rollouts=silent), groups[1]])
    assert [gram.table.group_id for gram in found] == [groups[1].group_id]
    assert set(found[0].table.rollouts) == {2, 3}


def test_a_sample_is_a_part_of_the_whole():
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(1, 3)
    (whole,) = measured(policy, groups)
    (part,) = measured(policy, groups, most=5, seed=4)
    (again,) = measured(policy, groups, most=5, seed=4)
    place = [
        int(np.flatnonzero((whole.table.rollouts == i) & (whole.table.positions == t))[0])
        for i, t in zip(part.table.rollouts, part.table.positions, strict=True)
    ]
    assert part.table.num_tokens == whole.table.num_tokens > len(part.gram) == 5
    assert part.verification.sum_error is None
    assert relative(part.gram, whole.gram[np.ix_(place, place)]) < 1e-5
    np.testing.assert_array_equal(part.table.positions, again.table.positions)


def test_every_token_is_equally_likely_to_be_drawn():
    rows = [TokenRow(sequence=0, position=position) for position in range(6)]
    drawn = [row.position for seed in range(600) for row in sample_tokens(rows, 2, seed)]
    counts = np.bincount(drawn, minlength=6)
    assert np.all(np.abs(counts - 200) < 60)
    assert sample_tokens(rows, 9, 0) == tuple(rows)


def test_a_sample_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one token is needed"):
        sample_tokens([TokenRow(sequence=0, position=0)], 0, 0)


class Gained(nn.Linear):
    """A linear layer with a forward of its own, for which there is no rule."""

    def forward(self, given):
        return super().forward(given) * 1.5


def test_a_parameter_without_a_rule_goes_the_slow_way():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    policy.model.model.layers[1].mlp.up_proj.__class__ = Gained
    rows = naive_token_rows(policy, groups)
    (found,) = measured(policy_of(policy.model), groups)
    assert found.slow_parameters == ("model.layers.1.mlp.up_proj.bias", "model.layers.1.mlp.up_proj.weight")
    assert relative(found.gram, rows @ rows.T) < 1e-5


def test_a_model_without_a_list_of_layers_goes_the_slow_way():
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(1, 2)
    policy.model.config.num_hidden_layers = 7
    rows = naive_token_rows(policy, groups)
    sequences = token_sequences(policy, groups)
    chunks = chunks_of([TokenRow(sequence=0, position=0)], sequences)
    accumulator = GramAccumulator(1, policy.device)
    assert lockstep_gram(policy.model, policy.trainable, chunks, 1.0, accumulator) == frozenset(policy.trainable)
    token_loop_rows(policy.model, policy.trainable, chunks, 1.0, accumulator.add_rows)
    assert relative(accumulator.gram.numpy(), rows[:1] @ rows[:1].T) < 1e-5


def test_too_many_rows_for_the_memory_are_refused():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    sequences = token_sequences(policy, groups)
    chunks = chunks_of([TokenRow(sequence=0, position=0)], sequences)
    with pytest.raises(UsageError, match=r"output gradients of one layer over 1 token rows take .* the budget is"):
        lockstep_gram(
            policy.model, policy.trainable, chunks, 1.0, GramAccumulator(1, policy.device), max_layer_bytes=10
        )


def test_a_wrong_rule_is_caught(monkeypatch):
    def shrunk(honest):
        def wrong(call):
            factors = honest(call)
            weight = factors["weight"]
            return factors | {"weight": dataclasses.replace(weight, left=tuple(0.99 * part for part in weight.left))}

        return wrong

    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    step = measure_step(prepared, engine="loop")
    break_rule(monkeypatch, "linear", shrunk)
    with pytest.raises(VerificationError, match="token rows disagree with one backward pass a token"):
        measure_tokens(prepared, step)


def test_rows_that_do_not_add_up_are_caught():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)
    with pytest.raises(VerificationError, match="token rows disagree with the rollouts' own gradients"):
        measure_tokens(prepare_step(policy, groups, DAPO), dataclasses.replace(step, gram=step.gram * 1.01))


def test_a_parameter_that_is_left_out_is_caught(monkeypatch):
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)
    monkeypatch.setattr(measure, "lockstep_gram", lambda *_: frozenset(list(policy.trainable)[:1]))
    with pytest.raises(VerificationError, match="token rows covers 368 of 5424 parameters"):
        measure_tokens(prepare_step(policy, groups, DAPO), step)


def test_importance_ratios_and_clip_are_factors_of_a_token():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    plain = measured_step(policy, groups, DAPO)
    rollouts = tuple(
        dataclasses.replace(rollout, advantage=1.0, logprobs=tuple(logprobs - 0.3))
        for rollout, logprobs in zip(groups[0].rollouts, plain.logprobs, strict=True)
    )
    objective = Objective(loss_type="dapo", importance_ratio=True, epsilon_low=0.2, epsilon_high=0.2)
    (found,) = measured(policy, [dataclasses.replace(groups[0], rollouts=rollouts)], objective)
    np.testing.assert_allclose(found.table.score_weights, np.exp(0.3) / found.table.num_tokens, rtol=1e-5)
    assert found.table.logged_weights is not None
    assert not found.table.logged_weights.any()  # a ratio of 1.35 is beyond the clip
