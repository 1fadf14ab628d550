import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gradscope.gradients.layers import capture
from gradscope.gradients.model import head as head_module
from gradscope.gradients.model import passes as passes_module
from gradscope.gradients.model import sharding
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.head import PlainHead, observed_input, plain_head, sliced_outputs
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.trained.norms import fused_head, trl_output
from tests.gradients import models
from tests.gradients.adapters import adapted
from tests.gradients.heads import TAILS, Largest, model_of
from tests.launched import group_of_one


@pytest.mark.parametrize("name", list(TAILS))
def test_scale_and_cap_are_found_without_their_names(name):
    head = plain_head(model_of(name))
    scale, cap = TAILS[name][2]
    assert head.scale == pytest.approx(scale, rel=1e-12)
    assert (head.cap is None) == (cap is None)
    assert cap is None or head.cap == pytest.approx(cap, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "stream") for name in ("gpt2_tied_conv1d", "gemma3_scaled", *TAILS, "qwen3_moe")),
        *((name, engine) for name in ("qwen3_gqa_norms", "gemma2") for engine in ("loop", "prompt")),
    ],
)
def test_slices_give_the_gram_that_whole_logits_give(name, engine, monkeypatch):
    monkeypatch.setattr(head_module, "SLICE_BYTES", 300)  # a few words at a time
    policy, groups = models.policy_of(model_of(name)), models.tiny_groups()
    objective = Objective(loss_type="grpo", entropy_coef=0.1, temperature=0.8)
    assert plain_head(policy.model) is not None
    step = models.measured_step(policy, groups, objective, engine=engine, verify="all")
    for module in (passes_module, capture):
        monkeypatch.setattr(module, "plain_head", lambda model: None)
    expected = models.measured_step(policy, groups, objective, engine=engine)
    assert models.relative(step.gram, expected.gram) < 1e-6
    assert max(np.abs(a - b).max() for a, b in zip(step.logprobs, expected.logprobs, strict=True)) < 2e-6
    assert (step.slow_parameters, step.coverage) == (expected.slow_parameters, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_precision_has_slices(dtype):
    head = plain_head(models.tiny_model("qwen3_gqa_norms", dtype=dtype))
    assert (head.scale, head.cap, head.vocab_size) == (1.0, None, models.VOCAB)


TAIL_CHANGES = {
    "bias": lambda logits: logits + torch.linspace(0, 1, models.VOCAB),
    "mask": lambda logits: logits.index_fill(2, torch.tensor([5]), -1e4),
    "shorter": lambda logits: logits[..., :-1],
    "square": lambda logits: logits.square(),
    "nothing": lambda logits: logits * 0,
}


@pytest.mark.parametrize("change", TAIL_CHANGES)
def test_what_is_more_than_a_scale_and_a_cap_is_left_to_the_model(change):
    def changed_tail(module, inputs, output):
        output.logits = TAIL_CHANGES[change](output.logits)

    model = models.tiny_model("llama_untied_biases")
    model.register_forward_hook(changed_tail)
    assert plain_head(model) is None


def test_a_layer_that_is_another_or_is_watched_is_left_to_the_model():
    for other in (adapted("head"), adapted("saved head"), nn.Linear(2, 2)):
        assert plain_head(other) is None
    assert plain_head(adapted("rslora")) is not None  # an adapter of other layers
    model = models.tiny_model("llama_untied_biases")
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
    model, full = (models.tiny_model("llama_untied_biases") for _ in range(2))
    batch = pad_batch([0], [models.sequence_of()], torch.device("cpu"))
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
            (logprobs,) = passes_module.completion_logprobs(model, batch, 0.7)
            torch.testing.assert_close(logprobs, passes_module.completion_logprobs(full, batch, 0.7)[0])
        model.lm_head.register_forward_hook(lambda *_: None)
        assert plain_head(model) is None


@pytest.mark.parametrize("part", ["output", "gradient"])
def test_a_layer_that_does_not_compute_what_its_weight_says_is_left_to_the_model(part, monkeypatch):
    model, cotangents = models.tiny_model("llama_untied_biases"), head_module.HeadTokens.cotangents
    if part == "output":
        monkeypatch.setattr(head_module.PlainHead, "_scaled", lambda self, output, bias: (output * 1.001, 1.001))
    else:
        monkeypatch.setattr(head_module.HeadTokens, "cotangents", lambda *columns: cotangents(*columns) * 1.01)
    assert plain_head(model) is None


def test_the_model_is_asked_once_and_nothing_is_left_on_the_layer():
    model, passes = models.tiny_model("gpt2_tied_conv1d"), []
    model.register_forward_hook(lambda *_: passes.append(1))
    head = plain_head(model)
    num_passes = len(passes)
    assert plain_head(model).module is head.module is model.lm_head
    assert len(passes) == num_passes
    inputs = []
    with observed_input(head, inputs.append):
        assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 1)
    assert inputs[0].shape == (1, 3, 16)
    assert "forward" not in vars(model.lm_head)


TOKENS, WIDTH, VOCAB_SLICED = 7, 5, 29
KINDS = {"plain": (1.0, None), "scaled": (0.25, None), "capped": (3.0, 2.0)}


def head_of(kind: str, *, bias: bool, dtype: torch.dtype = torch.float64) -> PlainHead:
    torch.manual_seed(1)
    scale, cap = KINDS[kind]
    module = nn.Linear(WIDTH, VOCAB_SLICED, bias=bias).to(dtype)
    with torch.no_grad():
        module.weight.mul_(4)
    return PlainHead(module=module, scale=scale, cap=cap, temperature=0.7)


def all_logits(head: PlainHead, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies by ordinary operations on all logits."""
    logits = head.module(hidden) * head.scale
    logits = logits if head.cap is None else head.cap * torch.tanh(logits / head.cap)
    logs = torch.log_softmax(logits / head.temperature, dim=1)
    return logs[torch.arange(len(ids)), ids], -(logs.exp() * logs).sum(1)


def hidden_and_ids() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    return hidden, torch.tensor([0, 28, 3, 3, 14, 7, 21])  # the first and the last of the vocabulary, and one twice


@pytest.mark.parametrize("width", [1, 4, 29, 1000])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_values_and_gradients_are_those_of_all_logits(kind, bias, width, monkeypatch):
    monkeypatch.setattr(head_module, "SLICE_BYTES", 4 * TOKENS * width)
    head, (hidden, ids) = head_of(kind, bias=bias), hidden_and_ids()
    targets = [hidden, *head.module.parameters()]
    first, second = torch.randn(2, TOKENS, dtype=torch.float64)
    for entropies in (False, True):
        expected = all_logits(head, hidden, ids)
        result = sliced_outputs(head, hidden, ids, torch.float64, entropies=entropies)
        for single, other in zip(result, expected, strict=True):
            torch.testing.assert_close(single, other, rtol=1e-12, atol=1e-12)
        total = [first @ outputs[0] + (second @ outputs[1] if entropies else 0) for outputs in (result, expected)]
        for single, other in zip(*(torch.autograd.grad(loss, targets) for loss in total), strict=True):
            torch.testing.assert_close(single, other, rtol=1e-11, atol=1e-12)
    assert (result[0].requires_grad, result[1].requires_grad) == (True, True)
    assert not sliced_outputs(head, hidden, ids, torch.float64, entropies=False)[1].requires_grad
    with torch.no_grad():
        assert not sliced_outputs(head, hidden, ids, torch.float64, entropies=True)[0].requires_grad


def test_the_gradient_of_a_token_that_is_all_but_certain_keeps_its_digits():
    """Of 1 - p = 1e-9 whole float32 logits keep nothing."""
    module = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[20.0], [-1.0], [-2.0]]))
    head = PlainHead(module=module, scale=1.0, cap=None)
    grads = {}
    for dtype in (torch.float32, torch.float64):
        hidden = torch.ones(1, 1, dtype=dtype, requires_grad=True)
        (logprob, _) = sliced_outputs(head, hidden, torch.tensor([0]), dtype, entropies=False)
        (grads[dtype],) = torch.autograd.grad(logprob.sum(), hidden)
    exact = grads[torch.float64].item()
    assert 0 < exact < 1e-7
    assert grads[torch.float32].item() == pytest.approx(exact, rel=1e-5)


def test_cotangents_of_some_columns_are_those_of_the_layers_output():
    for kind in KINDS:
        head, (hidden, ids) = head_of(kind, bias=True), hidden_and_ids()
        watched: list[head_module.HeadTokens] = []
        for parameter in head.module.parameters():
            parameter.requires_grad_(False)
        outputs = sliced_outputs(
            # a frozen hidden state gets a graph for whoever watches
            *(head, hidden.detach(), ids, torch.float64),
            entropies=True,
            watch=lambda _, tokens, to=watched: to.append(tokens),
        )
        weights, extra = torch.randn(2, TOKENS, dtype=torch.float64)
        (weights @ outputs[0] + extra @ outputs[1]).backward()
        (tokens,) = watched
        made = head.module(hidden.detach()).requires_grad_(True)
        identity = PlainHead(module=nn.Identity(), scale=head.scale, cap=head.cap, temperature=head.temperature)
        expected = all_logits(identity, made, ids)
        (grad,) = torch.autograd.grad(weights @ expected[0] + extra @ expected[1], made)
        torch.testing.assert_close(tokens.cotangents(head, 3, 17), grad[:, 3:17])
        rows = [part.cotangents(head, 0, VOCAB_SLICED) for part in tokens.split([3, 4])]
        torch.testing.assert_close(torch.cat(rows), grad)


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_pass_makes_a_tensor_of_tokens_by_vocabulary(kind, monkeypatch):
    monkeypatch.setattr(head_module, "SLICE_BYTES", 4 * TOKENS * 4)
    head, (hidden, ids) = head_of(kind, bias=True), hidden_and_ids()
    with Largest() as seen:
        outputs = sliced_outputs(head, hidden, ids, torch.float64, entropies=True)
        (outputs[0].sum() + outputs[1].sum()).backward()
    assert seen.elements == VOCAB_SLICED * WIDTH < TOKENS * VOCAB_SLICED
