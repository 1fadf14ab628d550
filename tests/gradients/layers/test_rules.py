import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from transformers.pytorch_utils import Conv1D

from gradscope.errors import VerificationError
from gradscope.gradients.layers import rules
from gradscope.gradients.layers.factors import ForwardCall
from gradscope.gradients.layers.rules import ADAPTER, adapter_parameters, rule_for
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.adapters import KINDS, adapt, adapted, adapted_experts
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
    break_rule,
    measured_step,
    naive_token_rows,
    policy_of,
    relative,
    relative_gram,
    rollouts_of,
    score_error,
    tiny_experts,
    tiny_groups,
    tiny_model,
    weight_of,
)


def fits(module, inputs, returned, *, num_rows, length):
    call = ForwardCall(module=module, input=inputs, output=returned, num_rows=num_rows, length=length)
    return rule_for(module).fits(call)


def test_rules_are_chosen_by_what_a_module_computes():
    assert rule_for(nn.Linear(2, 3)) is rules.LINEAR
    assert rule_for(Conv1D(3, 2)) is rules.CONV1D
    assert rule_for(nn.Embedding(3, 2)) is rules.EMBEDDING
    assert rule_for(nn.LayerNorm(3)) is rules.NORM
    assert rule_for(nn.RMSNorm(3)) is rules.NORM
    unusual = [nn.Embedding(3, 2, max_norm=1.0), nn.Embedding(3, 2, scale_grad_by_freq=True)]
    doubled = type("Doubled", (nn.Linear,), {"forward": lambda self, hidden: 2 * nn.Linear.forward(self, hidden)})
    for module in (doubled(2, 3), *unusual, nn.PReLU()):
        assert rule_for(module) is None


def test_adapted_layers_experts_and_routers_have_rules_of_their_own():
    dora = adapted("dora").base_model.model.model.layers[0].self_attn.q_proj
    table = adapted("embedding").base_model.model.model.embed_tokens
    assert rule_for(dora) is rule_for(table) is rules.ADAPTER
    mixture = tiny_experts("mixtral").model.layers[0].mlp
    assert rule_for(mixture.experts) is rules.EXPERTS
    assert rule_for(mixture.gate) is rules.ROUTER
    linear = adapted("rslora").base_model.model.model.layers[0].self_attn.q_proj
    assert rule_for(linear) is None  # A and B are linear layers of their own
    assert rule_for(linear.lora_A["default"]) is rules.LINEAR
    assert adapter_parameters(nn.Linear(2, 2)) == ()


def test_no_module_of_a_model_matches_two_rules():
    for model in (adapted("dora"), adapted("embedding"), tiny_experts("mixtral"), *map(tiny_model, ARCHITECTURES)):
        for module in model.modules():
            assert sum(rule.matches(module) for rule in rules.RULES) <= 1


@pytest.mark.parametrize("module", [nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(3, 2)])
def test_a_parameter_that_a_rule_does_not_know_leaves_the_module_without_one(module):
    module.gain = nn.Parameter(torch.ones(1))
    assert rule_for(module) is None


class FunctionNorm(nn.Module):
    """Multiplies by a function of its weight."""

    def __init__(self, function) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.full((4,), 1.5)), function

    def forward(self, hidden):
        return hidden * self.function(self.weight)


@pytest.mark.parametrize(
    ("module", "affine"),
    [(FunctionNorm(torch.square), False), (FunctionNorm(lambda weight: 1 + weight), True), (nn.LayerNorm(4), True)],
    ids=["square", "offset", "plain"],
)
def test_a_norm_is_checked_for_being_affine(module, affine):
    inputs = torch.randn(2, 3, 4)
    assert fits(module, inputs, module(inputs), num_rows=2, length=3) == affine


class ChangedTable(nn.Embedding):
    """An embedding whose rows or ids are changed on the way."""

    def __init__(self, *sizes, change_rows=lambda rows: rows, change_ids=lambda ids: ids) -> None:
        super().__init__(*sizes)
        self.change_rows, self.change_ids = change_rows, change_ids

    def forward(self, ids):
        return self.change_rows(super().forward(self.change_ids(ids)))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Embedding(5, 4), True),
        (ChangedTable(5, 4, change_rows=lambda rows: 3 * rows), True),
        (ChangedTable(5, 4, change_rows=lambda rows: rows + 1), False),
        (ChangedTable(5, 4, change_ids=lambda ids: torch.arange(ids.shape[1]).expand_as(ids)), False),
    ],
    ids=["plain", "scaled", "shifted", "by position, as Whisper's"],
)
def test_an_embedding_may_scale_and_nothing_else(module, expected):
    ids = torch.tensor([[0, 2, 3], [4, 0, 1]])
    assert fits(module, ids, module(ids), num_rows=2, length=3) == expected


def test_tensors_without_row_or_token_axis_do_not_fit():
    module = nn.Linear(4, 4)
    folded = torch.randn(6, 4)
    assert not fits(module, folded, module(folded), num_rows=2, length=3)
    longer = torch.randn(2, 5, 4)
    assert not fits(module, longer, module(longer), num_rows=2, length=3)
    assert not fits(module, torch.randn(1, 3, 4), torch.randn(1, 3, 4), num_rows=2, length=3)


GROUPS = tiny_groups(1, 3)
WEIGHT = weight_of(GROUPS)


TRAINED = {
    **{"dora": "magnitude", "saved": "modules_to_save", "bias all": "base_layer.bias", "biases": "base_layer.bias"},
    **{"bias lora_only": "base_layer.bias", "lora_bias": "lora_B.default.bias", "embedding": "lora_embedding_A"},
    "patterns": "q_proj.lora_A",
}
"""Part of the name of a kind -> of that of a parameter which it trains; or peft might have ignored its options."""


@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_one_float64_backward_each(kind):
    policy = policy_of(adapted(kind), lora=True)
    mark = next((mark for part, mark in TRAINED.items() if part in kind), "lora_A.default.weight")
    assert any(mark in name for name in policy.trainable)
    assert kind != "patterns" or 5 in {parameter.shape[0] for parameter in policy.trainable.values()}
    token_rows = naive_token_rows(policy, GROUPS)
    ends = np.cumsum([len(rollout.completion_ids) for rollout in rollouts_of(GROUPS)])[:-1]
    rows = WEIGHT * np.stack([scores.sum(axis=0) for scores in np.split(token_rows, ends)])
    step = measured_step(policy, GROUPS, DAPO, batch_tokens=16, engine="stream", verify="all")
    assert relative_gram(step.score_gram, rows) < 1e-5
    assert (step.coverage, step.num_parameters, step.slow_parameters) == (1.0, rows.shape[1], ())
    (tokens,) = measure_tokens(prepare_step(policy, GROUPS, DAPO), step)
    assert relative_gram(tokens.gram, token_rows) < 1e-5
    assert (tokens.num_columns, tokens.slow_parameters) == (rows.shape[1], ())


@pytest.mark.slow
def test_adapters_on_fused_experts_go_the_slow_way_and_are_named():
    policy = policy_of(adapted_experts("mixtral"), lora=True)
    oracle = policy_of(adapted_experts("mixtral", implementation="eager"), lora=True)
    step = measured_step(policy, GROUPS, DAPO, engine="stream", verify="all")
    assert score_error(step, oracle, GROUPS) < 1e-5
    assert set(step.slow_parameters) == {name for name in policy.trainable if "experts" in name}
    assert len(step.slow_parameters) == 8 < len(policy.trainable)
    assert any("8 parameters have no layer rule" in note for note in step.notes)
    (tokens,) = measure_tokens(prepare_step(policy, GROUPS, DAPO), step)
    assert relative_gram(tokens.gram, naive_token_rows(oracle, GROUPS)) < 1e-5
    assert tokens.slow_parameters == step.slow_parameters


@pytest.mark.slow
def test_two_active_adapters_of_these_kinds_go_the_slow_way():
    model = adapt(tiny_model("llama_untied_biases"), {"use_dora": True})
    model.add_adapter("second", model.peft_config["default"])
    model.base_model.set_adapter(["default", "second"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or name.endswith("base_layer.bias"))
    policy = policy_of(model.eval(), lora=True)
    step = measured_step(policy, GROUPS, DAPO, engine="stream", verify="all")
    assert score_error(step, policy, GROUPS) < 1e-5
    assert set(step.slow_parameters) == set(policy.trainable)


def test_an_adapter_that_is_off_or_merged_has_no_rule():
    module = adapted("dora").base_model.model.model.layers[0].self_attn.q_proj
    assert rule_for(module) is rules.ADAPTER
    module.enable_adapters(False)
    assert not ADAPTER.matches(module)
    module.enable_adapters(True)
    module.merge()
    assert adapter_parameters(module) == ()


def test_a_layer_that_computes_something_else_does_not_fit():
    module = adapted("dora").base_model.model.model.layers[0].self_attn.q_proj
    inputs = torch.randn(2, 3, 16)
    returned = module(inputs)
    assert fits(module, inputs, returned, num_rows=2, length=3)
    assert not fits(module, inputs, 1.01 * returned, num_rows=2, length=3)


DROPPED = [
    *(("dora, rslora, biases", "adapter", part) for part in ("lora_A", "lora_B", "magnitude", "bias")),
    *(("mixtral", "experts", part) for part in ("down_proj", "gate_up_proj")),
]


@pytest.mark.parametrize(("name", "rule", "part"), DROPPED)
def test_a_dropped_part_is_caught(monkeypatch, name, rule, part):
    break_rule(monkeypatch, rule, part)
    policy = policy_of(tiny_experts(name)) if name == "mixtral" else policy_of(adapted(name), lora=True)
    with pytest.raises(VerificationError, match="disagrees with an ordinary backward pass"):
        measured_step(policy, GROUPS, DAPO, engine="stream")


MIXTURES = ("qwen3_moe", "qwen3_moe_normalized", "mixtral")


@pytest.mark.parametrize("name", MIXTURES)
def test_gram_equals_one_float64_backward_per_rollout(name):
    policy, groups = policy_of(tiny_experts(name)), tiny_groups()
    step = measured_step(policy, groups, DAPO, batch_tokens=24, engine="stream", verify="all")
    assert score_error(step, policy_of(tiny_experts(name, implementation="eager")), groups) < 1e-5
    assert (step.coverage, step.slow_parameters) == (1.0, ())


def test_experts_with_another_activation_inside_get_no_rule():
    module = tiny_experts("mixtral").model.layers[0].mlp.experts
    inputs, index = torch.randn(6, 16), torch.randint(0, 4, (6, 2))
    weights = torch.rand(6, 2)
    returned = module(inputs, index, weights)
    call = ForwardCall(module=module, input=inputs, output=returned, extra=(index, weights), num_rows=2, length=3)
    assert rules._fits_experts(call)
    for change in (
        *({"output": 1.1 * returned}, {"num_rows": 4}),
        *({"extra": (index,)}, {"extra": (index, weights[:, :1])}),
    ):
        assert not rules._fits_experts(replace(call, **change))


def test_experts_are_gated_by_their_own_function():
    model = tiny_experts("mixtral")
    for layer in model.model.layers:
        layer.mlp.experts._apply_gate = lambda x: x.chunk(2, dim=-1)[0].tanh() * x.chunk(2, dim=-1)[1].sin()
    stream, loop = (measured_step(policy_of(model), tiny_groups(), DAPO, engine=name) for name in ("stream", "loop"))
    assert stream.slow_parameters == ()
    assert relative(stream.score_gram, loop.score_gram) < 1e-5
    usual = measured_step(policy_of(tiny_experts("mixtral")), tiny_groups(), DAPO, engine="loop")
    assert relative(loop.score_gram, usual.score_gram) > 0.01


def test_a_router_that_looks_at_all_tokens_gets_no_rule():
    router = tiny_experts("mixtral").model.layers[0].mlp.gate
    inputs = torch.randn(12, 16)
    shares = router(inputs)[1]
    call = ForwardCall(module=router, input=inputs, output=shares, num_rows=4, length=3)
    assert rules._fits_router(call)
    for change in ({"output": shares + 0.1}, {"num_rows": 2}, {"extra": (inputs,)}):
        assert not rules._fits_router(replace(call, **change))


def test_only_the_known_layout_counts_as_experts():
    class Experts(nn.Module):
        act_fn = staticmethod(torch.relu)

        def __init__(self, inner):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.zeros(2, 6, 4))
            self.down_proj = nn.Parameter(torch.zeros(2, 4, inner))

    assert rules._is_expert_layer(Experts(3))
    assert not rules._is_expert_layer(Experts(4))
    assert not rules._is_expert_layer(nn.Linear(2, 2))


@pytest.mark.parametrize("name", MIXTURES[1:])
def test_token_rows_equal_one_float64_backward_per_token(name):
    policy, groups = policy_of(tiny_experts(name)), tiny_groups(1, 2)
    rows = naive_token_rows(policy_of(tiny_experts(name, implementation="eager")), groups)
    (tokens,) = measure_tokens(prepare_step(policy, groups, DAPO), measured_step(policy, groups, DAPO))
    assert relative_gram(tokens.gram, rows) < 1e-5
    assert (tokens.num_columns, tokens.slow_parameters) == (rows.shape[1], ())
