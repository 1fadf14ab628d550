import pytest
import torch

from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.passes import backpropagate, backward, sum_of_squares
from gradscope.gradients.model.policy import token_sequences
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients import models


@pytest.mark.slow
@pytest.mark.parametrize(("lora", "reentrant"), [(False, False), (False, True), (True, True)])
def test_a_model_in_training_mode_with_checkpointing_gives_the_same_rows(lora, reentrant):
    expected = models.policy_of(models.tiny_model("qwen3_gqa_norms", lora=lora), lora=lora)
    groups = models.tiny_groups(1, 3)
    model = models.tiny_model("qwen3_gqa_norms", lora=lora).train()
    inner = model.get_base_model() if lora else model
    inner.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    policy = models.policy_of(model, lora=lora)
    for engine in ("loop", "stream"):
        step = models.measured_step(policy, groups, models.DAPO, engine=engine, verify="all")
        assert models.score_error(step, expected, groups) < 1e-5
        assert (step.coverage, step.slow_parameters) == (1.0, ())
    (tokens,) = measure_tokens(prepare_step(policy, groups, models.DAPO), step)
    assert models.relative_gram(tokens.gram, models.naive_token_rows(expected, groups)) < 1e-5
    assert tokens.slow_parameters == ()
    assert model.training
    assert inner.is_activation_checkpointing


TEMPERATURE = 0.7


def setting():
    """A policy, its batch of three rollouts, and the gradient of sum_b (b + 1) sum_t log pi by autograd."""
    policy = models.tiny_policy("llama_untied_biases", dtype=torch.float64)
    sequences = token_sequences(policy, models.tiny_groups(1, 3))
    loss = torch.zeros((), dtype=torch.float64)
    for row, sequence in enumerate(sequences):
        loss = loss + (row + 1) * models.plain_logprobs(policy.model, sequence, TEMPERATURE).sum()
    grads = torch.autograd.grad(loss, list(policy.trainable.values()))
    return policy, pad_batch(range(3), sequences, policy.device), dict(zip(policy.trainable, grads, strict=True))


def weigh(position: int, logprobs: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logprobs, position + 1.0)


def test_every_parameters_gradient_is_handed_out_once_and_their_squares_add_up():
    policy, batch, expected = setting()
    results = []
    backward(policy.model, policy.trainable, batch, TEMPERATURE, weigh, lambda *pair: results.append(pair))
    assert sorted(name for name, _ in results) == sorted(expected)
    for name, grad in results:
        torch.testing.assert_close(grad, expected[name], rtol=1e-5, atol=1e-7)
    assert sum(float(sum_of_squares(grad)) for _, grad in results) == pytest.approx(
        sum(float(grad.square().sum()) for grad in expected.values()), rel=1e-5
    )


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


def test_rows_are_weighed_before_they_are_added():
    first, second = (torch.tensor(values, requires_grad=True) for values in ([1.0, 2.0], [3.0]))
    backpropagate([first * 2, second], [torch.tensor([1.0, -1.0]), torch.tensor([5.0])])
    assert first.grad.tolist() == [2.0, -2.0]
    assert second.grad.tolist() == [5.0]
