from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradscope.gradients.model.head.plain import plain_head
from gradscope.gradients.model.token_sequence import Frame
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.trained.randomness import is_random, takes_random_numbers
from tests.gradients.adapters import adapted
from tests.gradients.models import DAPO, policy_of, tiny_experts, tiny_groups, tiny_model


def asked(model, *, without_dropout: bool = False, lora: bool = False) -> bool:
    prepared = prepare_step(policy_of(model, lora=lora), tiny_groups(), DAPO)
    before = torch.get_rng_state()
    found = is_random(prepared.policy, prepared.plan.sequences[0], without_dropout=without_dropout)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    return found


@pytest.mark.parametrize("name", ["llama_untied_biases", "qwen3_gqa_norms", "gemma3_scaled"])
def test_nothing_is_drawn_without_dropout(name: str) -> None:
    assert not asked(tiny_model(name))


def test_dropout_of_modules_can_be_switched_off() -> None:
    """GPT-2 has a tenth of it by default."""
    assert asked(tiny_model("gpt2_tied_conv1d"))
    assert not asked(tiny_model("gpt2_tied_conv1d"), without_dropout=True)
    assert asked(adapted("dropout"), lora=True)
    assert not asked(adapted("dropout"), without_dropout=True, lora=True)


def test_dropout_that_a_layer_hands_to_a_function_stays_on() -> None:
    model = tiny_model("qwen3_gqa_norms")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert asked(model, without_dropout=True)


def test_noise_of_a_router_is_drawn_in_training() -> None:
    model = tiny_experts("mixtral")
    assert not asked(model)
    for layer in model.model.layers:
        layer.mlp.jitter_noise = 0.5
    assert asked(model, without_dropout=True)


def test_the_shares_of_dropout_come_back() -> None:
    model = tiny_model("gpt2_tied_conv1d")
    asked(model, without_dropout=True)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}


def test_a_few_tokens_are_enough() -> None:
    model = tiny_model("gpt2_tied_conv1d")
    plain_head(model)  # it runs the model, once and for all
    widths: list[int] = []
    model.transformer.wte.register_forward_pre_hook(lambda module, given: widths.append(given[0].shape[1]))
    policy = policy_of(model)
    sequence = prepare_step(policy, tiny_groups(), DAPO).plan.sequences[0]
    long = replace(sequence, prompt_ids=(1,) * 15, completion_ids=(2,) * 17, mask=(True,) * 17)
    framed = replace(long, frame=Frame(prompt_width=15, completion_width=17, padding_id=0))
    for asked_about, width in ((long, 31), (framed, 32)):
        widths.clear()
        assert is_random(policy, asked_about, without_dropout=False)
        assert takes_random_numbers(policy, asked_about, without_dropout=False)
        assert set(widths) == {width}
