from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gradscope.errors import VerificationError
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens import measure
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
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
    assert found.num_columns == rows.shape[1]
    assert found.verification.row_error < found.verification.tolerance
    assert found.verification.sum_error is not None


def test_token_gram_in_float64_is_exact_to_rounding():
    policy, groups = tiny_policy("gpt2_tied_conv1d", dtype=torch.float64), tiny_groups(1, 3)
    rows = naive_token_rows(policy, groups)
    assert relative(measured(policy, groups)[0].gram, rows @ rows.T) < 1e-12


def test_the_rows_of_a_rollout_add_up_to_its_score_vector():
    policy, groups = tiny_policy("gpt2_tied_conv1d", dtype=torch.float64), tiny_groups(1, 3)
    (found,) = measured(policy, groups)
    mixing = (found.table.rollouts == np.arange(3)[:, None]) * found.table.score_weights
    rows = naive_rows(policy, groups, 1.0 / found.table.num_tokens)
    assert relative(mixing @ found.gram @ mixing.T, rows @ rows.T) < 1e-12


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


def test_a_parameter_that_is_left_out_is_caught(monkeypatch):
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)
    monkeypatch.setattr(measure, "lockstep_gram", lambda *_: frozenset(list(policy.trainable)[:1]))
    with pytest.raises(VerificationError, match="token rows covers 368 of 5424 parameters"):
        measure_tokens(prepare_step(policy, groups, DAPO), step)
