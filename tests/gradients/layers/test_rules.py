from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from gradscope.gradients.layers import rules
from gradscope.gradients.layers.layer_call import ForwardCall, LayerCall
from gradscope.gradients.layers.rules import rule_for
from tests.gradients.adapters import adapted
from tests.gradients.models import ARCHITECTURES, tiny_experts, tiny_model


def fits(module, given, returned, *, num_rows, length):
    call = ForwardCall(module=module, input=given, output=returned, num_rows=num_rows, length=length)
    return rule_for(module).fits(call)


class Doubled(nn.Linear):
    def forward(self, given):
        return 2 * super().forward(given)


class OddNorm(nn.Module):
    """Not affine in its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 1.5))

    def forward(self, given):
        return given * self.weight**2


class OffsetNorm(OddNorm):
    """Gemma's way: the weight is an offset from one."""

    def forward(self, given):
        return given * (1 + self.weight)


class Shifted(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) + 1


class ByPosition(nn.Embedding):
    """Looks positions up, whatever it is given, as Whisper does."""

    def forward(self, ids):
        return super().forward(torch.arange(ids.shape[1]).expand_as(ids))


class Scaled(nn.Embedding):
    def forward(self, ids):
        return 3 * super().forward(ids)


def test_rules_are_chosen_by_what_a_module_computes():
    assert rule_for(nn.Linear(2, 3)) is rules.LINEAR
    assert rule_for(Conv1D(3, 2)) is rules.CONV1D
    assert rule_for(nn.Embedding(3, 2)) is rules.EMBEDDING
    assert rule_for(nn.LayerNorm(3)) is rules.NORM
    assert rule_for(nn.RMSNorm(3)) is rules.NORM
    for module in (
        Doubled(2, 3),
        nn.Embedding(3, 2, max_norm=1.0),
        nn.Embedding(3, 2, scale_grad_by_freq=True),
        nn.PReLU(),
    ):
        assert rule_for(module) is None


def test_adapted_layers_experts_and_routers_have_rules_of_their_own():
    dora = adapted("dora").base_model.model.model.layers[0].self_attn.q_proj
    table = adapted("embedding").base_model.model.model.embed_tokens
    assert rule_for(dora) is rule_for(table) is rules.ADAPTER
    mixture = tiny_experts("mixtral").model.layers[0].mlp
    assert rule_for(mixture.experts) is rules.EXPERTS
    assert rule_for(mixture.gate) is rules.ROUTER
    plain = adapted("rslora").base_model.model.model.layers[0].self_attn.q_proj
    assert rule_for(plain) is None  # A and B are linear layers of their own


def test_no_module_of_a_model_matches_two_rules():
    for model in (adapted("dora"), adapted("embedding"), tiny_experts("mixtral"), *map(tiny_model, ARCHITECTURES)):
        for module in model.modules():
            assert sum(rule.matches(module) for rule in rules.RULES) <= 1


@pytest.mark.parametrize("module", [nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(3, 2)])
def test_a_parameter_that_a_rule_does_not_know_leaves_the_module_without_one(module):
    module.gain = nn.Parameter(torch.ones(1))
    assert rule_for(module) is None


@pytest.mark.parametrize(("module", "affine"), [(OddNorm(), False), (OffsetNorm(), True), (nn.LayerNorm(4), True)])
def test_a_norm_is_checked_for_being_affine(module, affine):
    given = torch.randn(2, 3, 4)
    assert fits(module, given, module(given), num_rows=2, length=3) == affine


@pytest.mark.parametrize(
    ("module", "known"),
    [(nn.Embedding(5, 4), True), (Scaled(5, 4), True), (Shifted(5, 4), False), (ByPosition(5, 4), False)],
)
def test_an_embedding_may_scale_and_nothing_else(module, known):
    ids = torch.tensor([[0, 2, 3], [4, 0, 1]])
    assert fits(module, ids, module(ids), num_rows=2, length=3) == known


def test_tensors_without_row_or_token_axis_do_not_fit():
    module = nn.Linear(4, 4)
    folded = torch.randn(6, 4)
    assert not fits(module, folded, module(folded), num_rows=2, length=3)
    longer = torch.randn(2, 5, 4)
    assert not fits(module, longer, module(longer), num_rows=2, length=3)
    assert not fits(module, torch.randn(1, 3, 4), torch.randn(1, 3, 4), num_rows=2, length=3)


def test_the_padding_row_of_an_embedding_gets_no_gradient():
    module = nn.Embedding(5, 2, padding_idx=0)
    ids, grad = torch.tensor([[0, 3, 0]]), torch.ones(1, 3, 2)
    call = LayerCall(module=module, input=ids, grad=grad, spans=((0, 3),), length=3)
    out = torch.zeros(5, 2)
    rules.embedding(call)["weight"].add_to(0, 0, out)
    module(ids).backward(grad)
    assert torch.equal(out, module.weight.grad)


@pytest.mark.parametrize("axes", [(2, 3, 4), (2, 5, 3, 4)], ids=["tokens", "heads before tokens"])
def test_norms_sum_over_tokens_and_heads(axes):
    module = nn.RMSNorm(4)
    nn.init.normal_(module.weight)
    given, grad = torch.randn(axes), torch.randn(axes)
    call = LayerCall(module=module, input=given, grad=grad, spans=((0, 3), (0, 3)), length=3)
    found = rules.norm(call)["weight"]
    for row in range(2):
        out = torch.zeros(4, 1)
        found.add_to(row, 0, out)
        (expected,) = torch.autograd.grad(module(given[row : row + 1]), module.weight, grad[row : row + 1])
        torch.testing.assert_close(out[:, 0], expected)
