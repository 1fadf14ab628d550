from __future__ import annotations

import pytest
import torch
from torch import nn

from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.models import (
    DAPO,
    measured_step,
    naive_rows,
    naive_token_rows,
    policy_of,
    relative,
    tiny_groups,
    tiny_model,
)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_model_in_training_mode_with_checkpointing_gives_the_same_rows(lora, reentrant):
    plain, groups = policy_of(tiny_model("qwen3_gqa_norms", lora=lora), lora=lora), tiny_groups(1, 3)
    model = tiny_model("qwen3_gqa_norms", lora=lora).train()
    inner = model.get_base_model() if lora else model
    inner.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    policy = policy_of(model, lora=lora)
    num_tokens = sum(len(rollout.completion_ids) for rollout in groups[0].rollouts)
    rows, token_rows = naive_rows(plain, groups, 1.0 / num_tokens), naive_token_rows(plain, groups)
    for engine in ("loop", "stream"):
        step = measured_step(policy, groups, DAPO, engine=engine, verify="all")
        assert relative(step.score_gram, rows @ rows.T) < 1e-5
        assert (step.coverage, step.slow_parameters) == (1.0, ())
    (tokens,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    assert relative(tokens.gram, token_rows @ token_rows.T) < 1e-5
    assert tokens.slow_parameters == ()
    assert model.training
    assert inner.is_activation_checkpointing


class Gated(nn.Module):
    """A decoder layer whose output a bare parameter scales, feature by feature."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.gate = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, *arguments, **keywords):
        return self.layer(*arguments, **keywords) * self.gate


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_bare_parameter_goes_the_slow_way_and_is_named(lora):
    model = tiny_model("qwen3_gqa_norms", lora=lora)
    inner = model.get_base_model() if lora else model
    inner.model.layers[1] = Gated(inner.model.layers[1])
    policy, groups = policy_of(model, lora=lora), tiny_groups(1, 3)
    num_tokens = sum(len(rollout.completion_ids) for rollout in groups[0].rollouts)
    rows, token_rows = naive_rows(policy, groups, 1.0 / num_tokens), naive_token_rows(policy, groups)
    (bare,) = (name for name in policy.trainable if name.endswith("model.layers.1.gate"))
    step = measured_step(policy, groups, DAPO, engine="stream", verify="all")
    (tokens,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    assert relative(step.score_gram, rows @ rows.T) < 1e-5
    assert relative(tokens.gram, token_rows @ token_rows.T) < 1e-5
    assert step.slow_parameters == tokens.slow_parameters == (bare,)
    assert (step.coverage, tokens.num_columns) == (1.0, token_rows.shape[1])
    assert any(f"1 parameters have no layer rule and took one backward pass a row: {bare}." in n for n in step.notes)
