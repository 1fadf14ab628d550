import pytest
import torch
from torch import nn

from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.passes import backpropagate, backward, gradients_on, squared_norm
from gradscope.gradients.model.policy import token_sequences
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.models import (
    DAPO,
    measured_step,
    naive_rows,
    naive_token_rows,
    plain_logprobs,
    policy_of,
    relative,
    tiny_groups,
    tiny_model,
    tiny_policy,
)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_model_in_training_mode_with_checkpointing_gives_the_same_rows(lora, reentrant):
    plain, groups = policy_of(tiny_model("qwen3_gqa_norms", lora=lora), lora=lora), tiny_groups(1, 3)
    model = tiny_model("qwen3_gqa_norms", lora=lora).train()
    inner = model.get_base_model() if lora else model
    inner.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    policy = policy_of(model, lora=lora)
    num_tokens = sum(len(rollout.completion_ids) for rollout in groups[0].rollouts)
    rows, token_rows = naive_rows(plain, groups, 1.0 / num_tokens), naive_token_rows(plain, groups)
    for engine in ("loop", "stream"):
        step = measured_step(policy, groups, DAPO, engine=engine, verify="all")
        assert relative(step.score_gram, rows @ rows.T) < 1e-5
        assert (step.coverage, step.slow_parameters) == (1.0, ())
    (tokens,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    assert relative(tokens.gram, token_rows @ token_rows.T) < 1e-5
    assert tokens.slow_parameters == ()
    assert model.training
    assert inner.is_activation_checkpointing


class Gated(nn.Module):
    """A decoder layer whose output a bare parameter scales, feature by feature."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.gate = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, *arguments, **keywords):
        return self.layer(*arguments, **keywords) * self.gate


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_bare_parameter_goes_the_slow_way_and_is_named(lora):
    model = tiny_model("qwen3_gqa_norms", lora=lora)
    inner = model.get_base_model() if lora else model
    inner.model.layers[1] = Gated(inner.model.layers[1])
    policy, groups = policy_of(model, lora=lora), tiny_groups(1, 3)
    num_tokens = sum(len(rollout.completion_ids) for rollout in groups[0].rollouts)
    rows, token_rows = naive_rows(policy, groups, 1.0 / num_tokens), naive_token_rows(policy, groups)
    (bare,) = (name for name in policy.trainable if name.endswith("model.layers.1.gate"))
    step = measured_step(policy, groups, DAPO, engine="stream", verify="all")
    (tokens,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    assert relative(step.score_gram, rows @ rows.T) < 1e-5
    assert relative(tokens.gram, token_rows @ token_rows.T) < 1e-5
    assert step.slow_parameters == tokens.slow_parameters == (bare,)
    assert (step.coverage, tokens.num_columns) == (1.0, token_rows.shape[1])
    assert any(f"1 parameters have no layer rule and took one backward pass a row: {bare}." in n for n in step.notes)


TEMPERATURE = 0.7


def setting():
    """A policy, its batch of three rollouts, and the gradient of sum_b (b + 1) sum_t log pi by autograd."""
    policy = tiny_policy("llama_untied_biases", dtype=torch.float64)
    sequences = token_sequences(policy, tiny_groups(1, 3))
    loss = torch.zeros((), dtype=torch.float64)
    for row, sequence in enumerate(sequences):
        loss = loss + (row + 1) * plain_logprobs(policy.model, sequence, TEMPERATURE).sum()
    grads = torch.autograd.grad(loss, list(policy.trainable.values()))
    return policy, pad_batch(range(3), sequences, policy.device), dict(zip(policy.trainable, grads, strict=True))


def weigh(position: int, logprobs: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logprobs, position + 1.0)


def test_every_parameters_gradient_is_handed_out_once():
    policy, batch, expected = setting()
    results = []
    backward(policy.model, policy.trainable, batch, TEMPERATURE, weigh, lambda *pair: results.append(pair))
    assert sorted(name for name, _ in results) == sorted(expected)
    for name, grad in results:
        torch.testing.assert_close(grad, expected[name], rtol=1e-5, atol=1e-7)


def test_gradients_that_wait_for_the_optimizer_stay_as_they_are():
    policy, batch, _ = setting()
    stored = {name: torch.ones_like(parameter) for name, parameter in policy.trainable.items()}
    for name, parameter in policy.trainable.items():
        parameter.grad = stored[name]
    backward(policy.model, policy.trainable, batch, TEMPERATURE, weigh, lambda *_: None)
    assert all(parameter.grad is stored[name] for name, parameter in policy.trainable.items())
    with pytest.raises(KeyError):
        backward(policy.model, policy.trainable, batch, TEMPERATURE, weigh, lambda name, _: {}[name])
    assert all(parameter.grad is stored[name] for name, parameter in policy.trainable.items())


def test_the_squared_norm_is_that_of_all_parameters_together():
    policy, batch, expected = setting()
    result = squared_norm(policy.model, policy.trainable, batch, TEMPERATURE, weigh)
    assert result == pytest.approx(sum(float(grad.square().sum()) for grad in expected.values()), rel=1e-5)


def test_weight_gradients_come_back_as_they_were():
    parameters = {"a": torch.nn.Parameter(torch.ones(1)), "b": torch.nn.Parameter(torch.ones(1), requires_grad=False)}
    with gradients_on(parameters, on=True):
        assert parameters["b"].requires_grad
    with gradients_on(parameters, on=False):
        assert not parameters["a"].requires_grad
    assert (parameters["a"].requires_grad, parameters["b"].requires_grad) == (True, False)


def test_rows_are_weighed_before_they_are_added():
    first, second = (torch.tensor(values, requires_grad=True) for values in ([1.0, 2.0], [3.0]))
    backpropagate([first * 2, second], [torch.tensor([1.0, -1.0]), torch.tensor([5.0])])
    assert first.grad.tolist() == [2.0, -2.0]
    assert second.grad.tolist() == [5.0]
