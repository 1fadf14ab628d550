import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.engines.prompt import prompt_gram
from gradscope.gradients.engines.stream import stream_gram
from gradscope.gradients.layers.capture import Capture, recomputed, share_nothing
from gradscope.gradients.layers.trace import decoder_layers
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.passes import gradients_on
from gradscope.gradients.plan.prepared_step import prepare_step
from tests.gradients.heads import model_of
from tests.gradients.models import DAPO, FULL_AND_LORA, policy_of, sequence_of, tiny_experts, tiny_groups, tiny_model


class GatedNorm(nn.Module):
    """Takes a second tensor, so no rule can call it again with another weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, hidden, gate):
        return hidden * gate * self.weight


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = GatedNorm()
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.norm(ids, ids.sigmoid()))


def captured(model: nn.Module, inputs, *, is_trained: bool = True) -> tuple[Capture, dict[str, list]]:
    """A forward pass of a batch of two rows, with a backward pass where it is trained; the factors that arrive."""
    trainable, arrived = dict(model.named_parameters()), {}
    capture = Capture(model, trainable)
    batch = pad_batch([0, 1], [sequence_of(), sequence_of()], torch.device("cpu"))

    def collect(name, factors):
        assert name not in arrived
        arrived[name] = factors

    with capture.hooks():
        model(inputs)  # outside a batch the hooks only watch
        with capture.batch(batch, collect), gradients_on(trainable, on=False):
            output = model(inputs)
            if is_trained:
                output.sum().backward()
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    return capture, arrived


def test_what_no_rule_can_do_is_uncovered_and_the_rest_arrives_once():
    capture, arrived = captured(Toy(), torch.randn(2, 3, 4))
    assert {name: len(factors) for name, factors in arrived.items()} == {"head.bias": 1, "head.weight": 1}
    assert capture.uncovered == {"norm.weight"}
    assert (capture.head, capture.sliced) == (None, frozenset())


def test_parameters_of_an_output_layer_in_slices_are_known_by_name():
    model = model_of("gptj")
    capture = Capture(model, dict(model.named_parameters()))
    assert capture.head.module is model.lm_head
    assert capture.sliced == {"lm_head.weight", "lm_head.bias"}
    assert Capture(model, {"wte": model.transformer.wte.weight}).sliced == frozenset()


class InPlace(nn.Module):
    """Scales what both of its layers return, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layer = nn.Linear(4, 3, bias=False)

    def forward(self, ids):
        hidden = self.table(ids)
        hidden *= 2
        hidden = self.layer(hidden.sin())
        hidden *= 3
        return hidden.cos()


def test_a_model_may_write_in_place():
    model, ids = InPlace(), torch.tensor([[1, 2, 3], [3, 0, 1]])
    capture, arrived = captured(model, ids)
    trainable = dict(model.named_parameters())
    assert (capture.uncovered, arrived.keys()) == (set(), trainable.keys())
    expected = dict(zip(trainable, torch.autograd.grad(model(ids[1:]).sum(), trainable.values()), strict=True))
    for name, (factor,) in arrived.items():
        result = torch.zeros_like(expected[name])
        factor.add_to(1, 0, result)
        torch.testing.assert_close(result, expected[name])


class ByShape(nn.Embedding):
    """Looks positions up for a shape, as BART's family does."""

    def forward(self, shape):
        return super().forward(torch.arange(shape[1]).expand(shape))


def test_an_embedding_without_ids_is_uncovered():
    capture, _ = captured(ByShape(5, 4), torch.Size((2, 3)), is_trained=False)
    assert capture.uncovered == {"weight"}


def gram_of(policy, way: str, *, recompute: bool):
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    total = GramAccumulator(6, torch.device("cpu"))
    prepared.budget.recompute = recompute
    if way == "prompt":
        slow = prompt_gram(prepared, 4096, total, lambda *_: None)
    else:
        batches = prepared.batches(range(6), 4096 if way == "one batch" else 20)
        slow = stream_gram(prepared, batches, total, lambda *_: None)
    return total.gram, slow


@pytest.mark.parametrize(
    ("name", "lora", "way"),
    [
        *((*case, "one batch") for case in (*FULL_AND_LORA, ("qwen3_moe", False))),
        *(("qwen3_gqa_norms", lora, way) for lora in (False, True) for way in ("batches", "prompt")),
    ],
)
def test_the_gram_is_the_same_to_the_bit(name, lora, way):
    model = tiny_experts(name) if name == "qwen3_moe" else tiny_model(name, lora=lora)
    policy = policy_of(model, lora=lora)
    (stored, slow), (rerun, slow_rerun) = (gram_of(policy, way, recompute=rerun) for rerun in (False, True))
    assert torch.equal(stored, rerun)
    assert slow == slow_rerun == frozenset()
    assert not any("forward" in vars(layer) for layer in decoder_layers(model))


def test_every_layer_runs_twice_and_keeps_only_what_goes_in():
    policy = policy_of(tiny_model("llama_untied_biases"))
    runs: list[int] = []
    for layer in decoder_layers(policy.model):
        layer.mlp.register_forward_hook(lambda *_: runs.append(1))
    stored = {}
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
        stored[recompute] = sum(sizes.values()), len(runs)
    assert stored[True][1] == 2 * stored[False][1] == 4
    assert stored[True][0] < stored[False][0] / 3


class Layer(nn.Module):
    """Adds its second argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, hidden, second=None):
        add = second["add"] if isinstance(second, dict) else 0 if second is None else second
        return torch.tanh(self.inner(hidden)) + add


@pytest.mark.parametrize("second", ["dict", "gradient", "plain", "nothing"])
def test_a_layer_whose_second_run_could_differ_runs_once(second):
    layer, runs = Layer(), []
    hidden, extra = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=second == "gradient")
    inputs = {"dict": {"add": extra}, "nothing": None}.get(second, extra)

    def run(once):
        runs.append(torch.is_grad_enabled())
        return once()

    expected = torch.autograd.grad(layer(hidden, inputs).sum(), hidden)[0]
    with recomputed([layer], run):
        layer(hidden, second=inputs).sum().backward()
        with torch.no_grad():
            layer(hidden, second=inputs)  # nothing runs again
    assert torch.equal(hidden.grad, expected)
    assert runs == ([] if second in ("dict", "gradient") else [False, True])
    assert "forward" not in vars(layer)


def test_a_forward_pass_that_somebody_exchanged_comes_back():
    layer = Layer()
    custom = vars(layer)["forward"] = lambda hidden: hidden * 2
    hidden = torch.ones(1, 3, requires_grad=True)
    with recomputed([layer], lambda once: once()):
        layer(hidden).sum().backward()
        assert layer.forward is not custom
    assert layer.forward is custom
    assert torch.equal(hidden.grad, torch.full((1, 3), 2.0))


def test_layers_that_share_a_parameter_are_found():
    layers = [Layer(), Layer()]
    assert share_nothing(layers)
    layers[1].inner.bias = layers[0].inner.bias
    assert not share_nothing(layers)
