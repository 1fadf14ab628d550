from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from gradscope.errors import VerificationError
from gradscope.gradients.layers import experts
from gradscope.gradients.layers.layer_call import ForwardCall
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.models import (
    DAPO,
    break_rule,
    measured_step,
    naive_rows,
    policy_of,
    relative,
    tiny_experts,
    tiny_groups,
    weight_of,
)
from tests.gradients.tokens.test_measure import naive_token_rows

MIXTURES = ("qwen3_moe", "qwen3_moe_normalized", "mixtral")


@pytest.mark.parametrize("batch_tokens", [None, 24])
@pytest.mark.parametrize("engine", ["loop", "stream"])
@pytest.mark.parametrize("name", MIXTURES)
def test_gram_equals_one_float64_backward_per_rollout(name, engine, batch_tokens):
    policy, groups = policy_of(tiny_experts(name)), tiny_groups()
    rows = naive_rows(policy_of(tiny_experts(name, implementation="eager")), groups, weight_of(groups))
    found = measured_step(policy, groups, DAPO, batch_tokens=batch_tokens, engine=engine, verify="all")
    assert relative(found.score_gram, rows @ rows.T) < 1e-5
    assert found.slow_parameters == ()
    assert found.coverage == 1.0


@pytest.mark.parametrize("name", MIXTURES)
def test_left_padding_changes_nothing(name):
    policy, groups = policy_of(tiny_experts(name)), tiny_groups()
    grams = [measured_step(policy, groups, DAPO, engine="stream", padding_side=side).gram for side in ("left", "right")]
    assert relative(*grams) < 1e-5


@pytest.mark.parametrize(("rule", "parameter"), [("experts", "down_proj"), ("experts", "gate_up_proj")])
def test_a_dropped_expert_is_caught(monkeypatch, rule, parameter):
    def silenced(honest):
        def silent(call):
            factors = dict(honest(call))
            part = factors[parameter]
            return factors | {parameter: dataclasses.replace(part, left=tuple(0 * left for left in part.left))}

        return silent

    break_rule(monkeypatch, rule, silenced)
    policy, groups = policy_of(tiny_experts("mixtral")), tiny_groups()
    with pytest.raises(VerificationError, match="disagrees with an ordinary backward pass"):
        measured_step(policy, groups, DAPO, engine="stream")


def test_experts_with_another_activation_inside_get_no_rule():
    model = tiny_experts("mixtral")
    module = model.model.layers[0].mlp.experts
    given, index = torch.randn(6, 16), torch.randint(0, 4, (6, 2))
    weights = torch.rand(6, 2)
    returned = module(given, index, weights)
    call = ForwardCall(module=module, input=given, output=returned, extra=(index, weights), num_rows=2, length=3)
    assert experts.fits_experts(call)
    assert not experts.fits_experts(dataclasses.replace(call, output=1.1 * returned))
    assert not experts.fits_experts(dataclasses.replace(call, extra=(index,)))
    assert not experts.fits_experts(dataclasses.replace(call, num_rows=4))
    assert not experts.fits_experts(dataclasses.replace(call, extra=(index, weights[:, :1])))


def test_experts_are_gated_by_their_own_function():
    model = tiny_experts("mixtral")
    for layer in model.model.layers:
        layer.mlp.experts._apply_gate = lambda both: both.chunk(2, dim=-1)[0].tanh() * both.chunk(2, dim=-1)[1].sin()
    stream, loop = (measured_step(policy_of(model), tiny_groups(), DAPO, engine=name) for name in ("stream", "loop"))
    assert stream.slow_parameters == ()
    assert relative(stream.score_gram, loop.score_gram) < 1e-5
    usual = measured_step(policy_of(tiny_experts("mixtral")), tiny_groups(), DAPO, engine="loop")
    assert relative(loop.score_gram, usual.score_gram) > 0.01


def test_a_router_that_looks_at_all_tokens_gets_no_rule():
    router = tiny_experts("mixtral").model.layers[0].mlp.gate
    given = torch.randn(12, 16)
    shares = router(given)[1]
    call = ForwardCall(module=router, input=given, output=shares, num_rows=4, length=3)
    assert experts.fits_router(call)
    assert not experts.fits_router(dataclasses.replace(call, output=shares + 0.1))
    assert not experts.fits_router(dataclasses.replace(call, num_rows=2))
    assert not experts.fits_router(dataclasses.replace(call, extra=(given,)))


def test_only_the_known_layout_counts_as_experts():
    class Experts(nn.Module):
        act_fn = staticmethod(torch.relu)

        def __init__(self, inner):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.zeros(2, 6, 4))
            self.down_proj = nn.Parameter(torch.zeros(2, 4, inner))

    assert experts.is_expert_layer(Experts(3))
    assert not experts.is_expert_layer(Experts(4))
    assert not experts.is_expert_layer(nn.Linear(2, 2))


@pytest.mark.parametrize("name", MIXTURES)
def test_token_rows_equal_one_float64_backward_per_token(name):
    policy, groups = policy_of(tiny_experts(name)), tiny_groups(1, 2)
    rows = naive_token_rows(policy_of(tiny_experts(name, implementation="eager")), groups)
    (found,) = measure_tokens(prepare_step(policy, groups, DAPO), measured_step(policy, groups, DAPO))
    assert relative(found.gram, rows @ rows.T) < 1e-5
    assert found.slow_parameters == ()
    assert found.num_columns == rows.shape[1]
    assert found.verification.sum_error < 2e-5
