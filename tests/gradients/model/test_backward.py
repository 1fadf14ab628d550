"""One ordinary backward pass, against autograd on a loss of its own."""

from __future__ import annotations

import pytest
import torch

from gradscope.gradients.model.backward import backpropagate, backward, gradients_on, squared_norm
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.tokenize import token_sequences
from tests.gradients.models import tiny_groups, tiny_policy

TEMPERATURE = 0.7


def setting():
    """A policy, its batch of three rollouts, and the gradient of sum_b (b + 1) sum_t log pi by autograd."""
    policy = tiny_policy("llama_untied_biases", dtype=torch.float64)
    sequences = token_sequences(policy, tiny_groups(1, 3))
    loss = torch.zeros((), dtype=torch.float64)
    for row, sequence in enumerate(sequences):
        ids, start = torch.tensor([sequence.prompt_ids + sequence.completion_ids]), len(sequence.prompt_ids)
        log_pi = torch.log_softmax(policy.model(input_ids=ids).logits[0, start - 1 : -1] / TEMPERATURE, -1)
        loss = loss + (row + 1) * log_pi.gather(1, ids[0, start:, None]).sum()
    grads = torch.autograd.grad(loss, list(policy.trainable.values()))
    return policy, pad_batch(range(3), sequences, policy.device), dict(zip(policy.trainable, grads, strict=True))


def weigh(position: int, logprobs: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logprobs, position + 1.0)


def test_every_parameters_gradient_is_handed_out_once():
    policy, batch, expected = setting()
    found = []
    backward(policy.model, policy.trainable, batch, TEMPERATURE, weigh, lambda *pair: found.append(pair))
    assert sorted(name for name, _ in found) == sorted(expected)
    for name, grad in found:
        torch.testing.assert_close(grad, expected[name], rtol=1e-5, atol=1e-7)


def test_gradients_that_wait_for_the_optimizer_stay_as_they_are():
    policy, batch, _ = setting()
    kept = {name: torch.ones_like(parameter) for name, parameter in policy.trainable.items()}
    for name, parameter in policy.trainable.items():
        parameter.grad = kept[name]
    backward(policy.model, policy.trainable, batch, TEMPERATURE, weigh, lambda *_: None)
    assert all(parameter.grad is kept[name] for name, parameter in policy.trainable.items())
    with pytest.raises(KeyError):
        backward(policy.model, policy.trainable, batch, TEMPERATURE, weigh, lambda name, _: {}[name])
    assert all(parameter.grad is kept[name] for name, parameter in policy.trainable.items())


def test_the_squared_norm_is_that_of_all_parameters_together():
    policy, batch, expected = setting()
    found = squared_norm(policy.model, policy.trainable, batch, TEMPERATURE, weigh)
    assert found == pytest.approx(sum(float(grad.square().sum()) for grad in expected.values()), rel=1e-5)


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
