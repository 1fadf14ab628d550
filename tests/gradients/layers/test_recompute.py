"""Decoder layers that run again: the same numbers to the bit, less of the forward pass kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.prompt import prompt_gram
from gradscope.gradients.engines.stream import stream_gram
from gradscope.gradients.layers.recompute import recomputed, share_nothing
from gradscope.gradients.layers.trace import decoder_layers
from gradscope.gradients.plan.prepared_step import prepare_step
from tests.gradients.models import ARCHITECTURES, DAPO, policy_of, tiny_experts, tiny_groups, tiny_model


def gram_of(policy, way: str, *, recompute: bool):
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    total = GramAccumulator(6, torch.device("cpu"))
    common = {"on_sequence": lambda *_: None, "recompute": recompute}
    if way == "prompt":
        slow = prompt_gram(policy.model, policy.trainable, prepared.plan, 4096, total, **common)
    else:
        batches = prepared.batches(range(6), 4096 if way == "one batch" else 20)
        slow = stream_gram(policy.model, policy.trainable, prepared.plan, batches, total, **common)
    return total.gram, slow


@pytest.mark.parametrize("way", ["one batch", "batches", "prompt"])
@pytest.mark.parametrize(
    ("name", "lora"), [*((name, lora) for name in ARCHITECTURES for lora in (False, True)), ("qwen3_moe", False)]
)
def test_the_gram_is_the_same_to_the_bit(name, lora, way):
    model = tiny_experts(name) if name == "qwen3_moe" else tiny_model(name, lora=lora)
    policy = policy_of(model, lora=lora)
    (plain, slow), (again, slow_again) = (gram_of(policy, way, recompute=each) for each in (False, True))
    assert torch.equal(plain, again)
    assert slow == slow_again == frozenset()
    assert not any("forward" in vars(layer) for layer in decoder_layers(model))


def test_every_layer_runs_twice_and_keeps_only_what_goes_in():
    policy = policy_of(tiny_model("llama_untied_biases"))
    runs: list[int] = []
    for layer in decoder_layers(policy.model):
        layer.mlp.register_forward_hook(lambda *_: runs.append(1))
    kept = {}
    gram_of(policy, "one batch", recompute=False)  # asks the model about its output layer, once and for all
    for recompute in (False, True):
        runs.clear()
        sizes: dict[int, int] = {}

        def keep(tensor, sizes=sizes):
            if torch._C._current_graph_task_id() == -1:  # in the forward pass
                sizes[tensor.untyped_storage().data_ptr()] = tensor.numel()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            gram_of(policy, "one batch", recompute=recompute)
        kept[recompute] = sum(sizes.values()), len(runs)
    assert kept[True][1] == 2 * kept[False][1] == 4
    assert kept[True][0] < kept[False][0] / 3


class Layer(nn.Module):
    """Adds what it is given beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, hidden, beside=None):
        add = beside["add"] if isinstance(beside, dict) else 0 if beside is None else beside
        return torch.tanh(self.inner(hidden)) + add


@pytest.mark.parametrize("beside", ["dict", "gradient", "tuple", "nothing"])
def test_a_layer_whose_second_run_could_differ_runs_once(beside):
    layer, runs = Layer(), []
    hidden, extra = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=beside == "gradient")
    given = {"dict": {"add": extra}, "gradient": extra, "tuple": extra, "nothing": None}[beside]

    def run(once):
        runs.append(torch.is_grad_enabled())
        return once()

    expected = torch.autograd.grad(layer(hidden, given).sum(), hidden)[0]
    with recomputed([layer], run):
        layer(hidden, beside=given).sum().backward()
    assert torch.equal(hidden.grad, expected)
    assert runs == ([] if beside in ("dict", "gradient") else [False, True])
    assert "forward" not in vars(layer)


def test_a_forward_pass_that_somebody_exchanged_comes_back():
    layer = Layer()
    own = vars(layer)["forward"] = lambda hidden: hidden * 2
    hidden = torch.ones(1, 3, requires_grad=True)
    with recomputed([layer], lambda once: once()):
        layer(hidden).sum().backward()
        assert layer.forward is not own
    assert layer.forward is own
    assert torch.equal(hidden.grad, torch.full((1, 3), 2.0))


def test_layers_that_share_a_parameter_are_told():
    layers = [Layer(), Layer()]
    assert share_nothing(layers)
    layers[1].inner.bias = layers[0].inner.bias
    assert not share_nothing(layers)


def test_without_gradients_nothing_runs_again():
    layer, runs = Layer(), []
    with recomputed([layer], runs.append), torch.no_grad():
        layer(torch.ones(1, 3))
    assert runs == []
