"""Which kinds of modules a gradient is in."""

from __future__ import annotations

import pytest

from gradscope.diagnostics.rank.weights.module_shares import module_of, module_shares
from gradscope.gradients.step.directions import TensorNorm


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lm_head.weight", "output head"),
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wte.weight", "embedding"),
        ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("base_model.model.model.layers.1.self_attn.q_proj.lora_B.default.weight", "attention"),
        ("transformer.h.0.mlp.c_fc.weight", "mlp"),
        ("model.layers.0.block_sparse_moe.experts.w1", "mlp"),
        ("model.layers.0.input_layernorm.weight", "other"),
    ],
)
def test_a_weight_is_of_the_module_that_its_name_tells(name: str, kind: str) -> None:
    assert module_of(name) == kind


def norm(name: str, value: float) -> TensorNorm:
    return TensorNorm(tensor=name, num_entries=1, norm=value)


def test_squares_add_up_by_kind() -> None:
    shares = module_shares(3, [norm("lm_head.weight", 3.0), norm("a.mlp.up", 4.0), norm("b.mlp.up", 12.0)])
    assert [(one.step, one.module) for one in shares] == [(3, "output head"), (3, "mlp")]
    assert [one.norm.value for one in shares] == pytest.approx([3.0, 160**0.5])
    assert [one.energy_share.value for one in shares] == pytest.approx([9 / 169, 160 / 169])
    assert [one.frac_parameters.value for one in shares] == pytest.approx([1 / 3, 2 / 3])


def test_a_gradient_of_nothing_is_nowhere() -> None:
    assert module_shares(3, [norm("lm_head.weight", 0.0)]) == []
