"""Every kind of adapter that peft trains, on rollout rows and token rows, against one float64 backward a row."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from gradscope.errors import VerificationError
from gradscope.gradients.layers import rules
from gradscope.gradients.layers.adapters import adapter_parameters, fits_adapter, is_adapted
from gradscope.gradients.layers.layer_call import ForwardCall
from gradscope.gradients.layers.rules import rule_for
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.adapters import KINDS, adapt, adapted, adapted_experts
from tests.gradients.models import (
    DAPO,
    break_rule,
    measured_step,
    naive_rows,
    naive_token_rows,
    policy_of,
    relative,
    tiny_groups,
    tiny_model,
)

GROUPS = tiny_groups(1, 3)
WEIGHT = 1.0 / sum(len(rollout.completion_ids) for rollout in GROUPS[0].rollouts)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_one_float64_backward_each(kind):
    policy = policy_of(adapted(kind), lora=True)
    rows, token_rows = naive_rows(policy, GROUPS, WEIGHT), naive_token_rows(policy, GROUPS)
    for engine, batch_tokens in (("loop", None), ("stream", None), ("stream", 16)):
        step = measured_step(policy, GROUPS, DAPO, batch_tokens=batch_tokens, engine=engine, verify="all")
        assert relative(step.score_gram, rows @ rows.T) < 1e-5
        assert (step.coverage, step.num_parameters, step.slow_parameters) == (1.0, rows.shape[1], ())
    (tokens,) = measure_tokens(prepare_step(policy, GROUPS, DAPO), step)
    assert relative(tokens.gram, token_rows @ token_rows.T) < 1e-5
    assert (tokens.num_columns, tokens.slow_parameters) == (rows.shape[1], ())


@pytest.mark.parametrize("kind", ["embedding, scaled", "dora", "dora, conv1d", "dora, embedding"])
def test_gram_in_float64_is_exact_to_rounding(kind):
    policy = policy_of(adapted(kind, dtype=torch.float64), lora=True)
    rows = naive_rows(policy, GROUPS, WEIGHT)
    assert relative(measured_step(policy, GROUPS, DAPO, engine="stream").score_gram, rows @ rows.T) < 1e-12


def test_every_kind_trains_what_it_says():
    """Otherwise a kind could pass because peft ignored its options."""
    trained = {kind: policy_of(adapted(kind), lora=True).trainable for kind in KINDS}
    marks = {"bias all": "bias", "lora_bias": "lora_B.default.bias", "patterns": "q_proj.lora_A"}
    for kind, names in trained.items():
        mark = marks.get(kind) or next((m for k, m in _MARKS.items() if k in kind), "lora_A.default.weight")
        assert any(mark in name for name in names), kind
    assert any(shape[0] == 5 for shape in (parameter.shape for parameter in trained["patterns"].values()))


_MARKS = {"dora": "magnitude", "saved": "modules_to_save", "embedding": "lora_embedding_A", "bias": "base_layer.bias"}


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_adapters_on_fused_experts_go_the_slow_way_and_are_named(name):
    policy = policy_of(adapted_experts(name), lora=True)
    oracle = policy_of(adapted_experts(name, implementation="eager"), lora=True)
    rows = naive_rows(oracle, GROUPS, WEIGHT)
    found = measured_step(policy, GROUPS, DAPO, engine="stream", verify="all")
    assert relative(found.score_gram, rows @ rows.T) < 1e-5
    assert set(found.slow_parameters) == {name for name in policy.trainable if "experts" in name}
    assert len(found.slow_parameters) == 8 < len(policy.trainable)
    assert any("8 parameters have no layer rule" in note for note in found.notes)
    rows = naive_token_rows(oracle, GROUPS)
    (tokens,) = measure_tokens(prepare_step(policy, GROUPS, DAPO), found)
    assert relative(tokens.gram, rows @ rows.T) < 1e-5
    assert tokens.slow_parameters == found.slow_parameters


def test_two_active_adapters_of_these_kinds_go_the_slow_way():
    model = adapt(tiny_model("llama_untied_biases"), {"use_dora": True})
    model.add_adapter("second", model.peft_config["default"])
    model.base_model.set_adapter(["default", "second"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or name.endswith("base_layer.bias"))
    policy = policy_of(model.eval(), lora=True)
    rows = naive_rows(policy, GROUPS, WEIGHT)
    found = measured_step(policy, GROUPS, DAPO, engine="stream", verify="all")
    assert relative(found.score_gram, rows @ rows.T) < 1e-5
    assert set(found.slow_parameters) == set(policy.trainable)


def test_an_adapter_that_is_off_or_merged_has_no_rule():
    module = adapted("dora").base_model.model.model.layers[0].self_attn.q_proj
    assert rule_for(module) is rules.ADAPTER
    module.enable_adapters(False)
    assert not is_adapted(module)
    module.enable_adapters(True)
    module.merge()
    assert adapter_parameters(module) == ()


def test_plain_lora_keeps_the_rule_of_its_linear_layers():
    module = adapted("rslora").base_model.model.model.layers[0].self_attn.q_proj
    assert rule_for(module) is None
    assert rule_for(module.lora_A["default"]) is rules.LINEAR
    assert adapter_parameters(nn.Linear(2, 2)) == ()


def test_a_layer_that_computes_something_else_does_not_fit():
    module = adapted("dora").base_model.model.model.layers[0].self_attn.q_proj
    given = torch.randn(2, 3, 16)
    returned = module(given)
    call = ForwardCall(module=module, input=given, output=returned, num_rows=2, length=3)
    assert fits_adapter(call)
    assert not fits_adapter(dataclasses.replace(call, output=1.01 * returned))


class Nothing:
    """A factor that adds nothing."""

    def add_to(self, row, start, out):
        pass


@pytest.mark.parametrize("part", ["lora_A", "lora_B", "magnitude", "bias"])
def test_a_dropped_part_is_caught(monkeypatch, part):
    def silenced(honest):
        return lambda call: {name: Nothing() if part in name else factor for name, factor in honest(call).items()}

    break_rule(monkeypatch, "adapter", silenced)
    policy = policy_of(adapted("dora, rslora, biases"), lora=True)
    with pytest.raises(VerificationError, match="disagrees with an ordinary backward pass"):
        measured_step(policy, GROUPS, DAPO, engine="stream")
