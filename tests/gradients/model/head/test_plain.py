"""Whether an output layer can be taken in slices is asked of the model."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gradscope.gradients.layers import capture
from gradscope.gradients.model import forward
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.head import sliced
from gradscope.gradients.model.head.plain import plain_head, told_input
from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.processes import sharding
from gradscope.gradients.trained.fused_head import fused_head
from gradscope.gradients.trained.output_layer import trl_output
from tests.gradients.adapters import adapted
from tests.gradients.heads import TAILS, model_of
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
    VOCAB,
    measured_step,
    policy_of,
    relative,
    tiny_groups,
    tiny_model,
)
from tests.launched import group_of_one

SEQUENCE = TokenSequence(
    group_id="g", sample=0, prompt_ids=(1,), completion_ids=(2, 3), mask=(True, True), inferred=False
)


@pytest.mark.parametrize("name", list(TAILS))
def test_scale_and_cap_are_found_without_their_names(name):
    head = plain_head(model_of(name))
    scale, cap = TAILS[name][2]
    assert head.scale == pytest.approx(scale, rel=1e-12)
    assert (head.cap is None) == (cap is None)
    assert cap is None or head.cap == pytest.approx(cap, rel=1e-12)


@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
@pytest.mark.parametrize("name", [*ARCHITECTURES, *TAILS, "qwen3_moe", "mixtral"])
def test_slices_give_the_gram_that_whole_logits_give(name, engine, monkeypatch):
    monkeypatch.setattr(sliced, "SLICE_BYTES", 300)  # a few words at a time
    policy, groups = policy_of(model_of(name)), tiny_groups()
    objective = Objective(loss_type="grpo", entropy_coef=0.1, temperature=0.8)
    assert plain_head(policy.model) is not None
    found = measured_step(policy, groups, objective, engine=engine, verify="all")
    for module in (forward, capture):
        monkeypatch.setattr(module, "plain_head", lambda model: None)
    expected = measured_step(policy, groups, objective, engine=engine)
    assert relative(found.gram, expected.gram) < 1e-6
    assert max(np.abs(a - b).max() for a, b in zip(found.logprobs, expected.logprobs, strict=True)) < 2e-6
    assert (found.slow_parameters, found.coverage) == (expected.slow_parameters, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_precision_has_slices(dtype):
    model = tiny_model("qwen3_gqa_norms", dtype=dtype)
    head = plain_head(model)
    assert (head.scale, head.cap, head.vocab_size) == (1.0, None, VOCAB)


def changed_tail(change):
    """A model that does something of its own to its logits."""
    model = tiny_model("llama_untied_biases")
    model.register_forward_hook(lambda module, arguments, output: change(output))
    return model


def add_bias(output):
    output.logits = output.logits + torch.linspace(0, 1, VOCAB)
    return output


def mask_one(output):
    output.logits = output.logits.index_fill(2, torch.tensor([5]), -1e4)
    return output


def shorten(output):
    output.logits = output.logits[..., :-1]
    return output


def square(output):
    output.logits = output.logits.square()
    return output


def vanish(output):
    output.logits = output.logits * 0
    return output


@pytest.mark.parametrize("change", [add_bias, mask_one, shorten, square, vanish])
def test_what_is_more_than_a_scale_and_a_cap_is_left_to_the_model(change):
    assert plain_head(changed_tail(change)) is None


def test_a_layer_that_is_another_or_is_watched_is_left_to_the_model():
    assert plain_head(adapted("head")) is None
    assert plain_head(adapted("saved head")) is None
    assert plain_head(nn.Linear(2, 2)) is None
    model = tiny_model("llama_untied_biases")
    assert plain_head(model) is not None
    with fused_head(model):
        assert plain_head(model) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert plain_head(model) is None
    handle = model.lm_head.register_forward_hook(lambda *_: None)
    assert plain_head(model) is None
    handle.remove()
    with trl_output(model):  # another forward pass around the same layer is asked anew
        assert plain_head(model) is not None
    assert plain_head(model) is not None


@pytest.mark.parametrize("is_unit", [False, True])
def test_a_layer_in_parts_is_whole_where_it_is_called(is_unit, monkeypatch):
    model, whole = (tiny_model("llama_untied_biases") for _ in range(2))
    batch = pad_batch([0], [SEQUENCE], torch.device("cpu"))
    with group_of_one(), torch.no_grad():
        mesh = init_device_mesh("cpu", (1,))
        for unit in (*model.model.layers, *([model.lm_head] if is_unit else []), model):
            fully_shard(unit, mesh=mesh)
        sharding.settle(model)
        assert plain_head(model) is None
        monkeypatch.setattr(sharding, "num_connected", lambda: 2)
        assert plain_head(model) is not None
        for _ in range(2):
            assert isinstance(model.lm_head.weight, DTensor)
            (found,) = forward.completion_logprobs(model, batch, 0.7)
            torch.testing.assert_close(found, forward.completion_logprobs(whole, batch, 0.7)[0])
        model.lm_head.register_forward_hook(lambda *_: None)
        assert plain_head(model) is None


def test_a_layer_that_does_not_compute_what_its_weight_says_is_left_to_the_model(monkeypatch):
    model = tiny_model("llama_untied_biases")
    monkeypatch.setattr(sliced.PlainHead, "_scaled", lambda self, output, bias: (output * 1.001, 1.001))
    assert plain_head(model) is None


def test_gradients_that_are_not_the_models_own_leave_it_to_the_model(monkeypatch):
    model, whole = tiny_model("llama_untied_biases"), sliced.HeadTokens.cotangents
    monkeypatch.setattr(
        sliced.HeadTokens, "cotangents", lambda self, head, start, stop: whole(self, head, start, stop) * 1.01
    )
    assert plain_head(model) is None


def test_the_model_is_asked_once_and_nothing_is_left_on_the_layer():
    model, passes = tiny_model("gpt2_tied_conv1d"), []
    model.register_forward_hook(lambda *_: passes.append(1))
    head = plain_head(model)
    asked = len(passes)
    assert plain_head(model).module is head.module is model.lm_head
    assert len(passes) == asked
    given = []
    with told_input(head, given.append):
        assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 1)
    assert given[0].shape == (1, 3, 16)
    assert "forward" not in vars(model.lm_head)


def test_an_adapter_elsewhere_leaves_the_layer_plain():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tiny_model("qwen3_gqa_norms", lora=True)
    step = measured_step(policy_of(model, lora=True), tiny_groups(), DAPO, engine="stream", verify="all")
    assert plain_head(model) is not None
    assert step.coverage == 1.0
