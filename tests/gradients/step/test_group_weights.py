"""dL/dW of single groups against one ordinary backward pass for each combination."""

import dataclasses

import numpy as np
import pytest
import torch

from gradscope.errors import VerificationError
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.group_weights import Combinations, measure_group_weights
from gradscope.gradients.step.measure import measure_step
from gradscope.metrics.gram.spectrum import effective_rank, participation_ratio, stable_rank
from tests.gradients.models import ARCHITECTURES, DAPO, plain_logprobs, tiny_groups, tiny_policy

FACTORS = np.array([[1.0, -0.5, -0.5], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])


def combinations(group_id: str, rollouts: tuple[int, ...], *, by_token: bool = False) -> Combinations:
    factors = np.hstack([FACTORS, np.zeros_like(FACTORS)]) if by_token else FACTORS
    return Combinations(
        group_id=group_id,
        rollouts=rollouts,
        by_token=by_token,
        factors=factors,
        has_null=np.array([True, False, False]),
    )


def plain_gradients(prepared: PreparedStep, rollouts: tuple[int, ...], factors: np.ndarray) -> dict[str, torch.Tensor]:
    """The gradient of sum_i factor_i sum_t w_it log pi, by autograd alone."""
    model, total = prepared.policy.model, torch.zeros(())
    for factor, rollout in zip(factors, rollouts, strict=True):
        chosen = plain_logprobs(model, prepared.plan.sequences[rollout])
        total = total + factor * (chosen * prepared.plan.weights[rollout].to(chosen)).sum()
    names = [name for name, parameter in model.named_parameters() if parameter.dim() == 2 and parameter.requires_grad]
    weights = [model.get_parameter(name) for name in names]
    found = torch.autograd.grad(total, weights, allow_unused=True)
    return {name: grad for name, grad in zip(names, found, strict=True) if grad is not None}


@pytest.mark.parametrize("name", [*ARCHITECTURES, "mixtral"])
@pytest.mark.parametrize(
    ("lora", "max_bytes"),
    [(False, 2**30), pytest.param(False, 1, marks=pytest.mark.slow), pytest.param(True, 2**30, marks=pytest.mark.slow)],
)
def test_every_combination_is_that_of_a_backward_pass(name: str, lora: bool, max_bytes: int) -> None:
    prepared = prepare_step(tiny_policy(name, lora=lora and name != "mixtral"), tiny_groups(2, 3), DAPO)
    step = measure_step(prepared)
    groups = [combinations("a", (0, 1, 2)), combinations("b", (3, 4, 5))]
    found = {
        (one.group_id, one.tensor): one for one in measure_group_weights(prepared, step, groups, max_bytes=max_bytes)
    }
    for group in groups:
        for place, factors in enumerate(FACTORS):
            for tensor, grad in plain_gradients(prepared, group.rollouts, factors).items():
                values = torch.linalg.svdvals(grad.double()).numpy()
                counts = found[group.group_id, tensor].counts[place]
                expected = [effective_rank(values), stable_rank(values), participation_ratio(values)]
                assert counts[:3] == pytest.approx([one.value for one in expected], rel=2e-3)
                assert counts[3] == pytest.approx(np.sum(values[:2] ** 2) / np.sum(values**2), rel=1e-4)


def test_unrelated_rows_have_the_norms_of_the_smaller_side() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 3), DAPO)
    for one in measure_group_weights(prepared, measure_step(prepared), [combinations("a", (0, 1, 2))]):
        assert np.isnan(one.gaussian[1:]).all()
        assert one.counts[0, 0] <= one.gaussian[0, 0] * 1.05 <= min(one.shape) * 1.05


def test_the_second_channel_is_the_gradient_with_the_logged_advantages_of_tokens() -> None:
    groups = tiny_groups(1, 3)
    rollouts = [
        dataclasses.replace(rollout, token_advantages=(2.0,) * len(rollout.completion_ids or ()), advantage=None)
        for rollout in groups[0].rollouts
    ]
    prepared = prepare_step(
        tiny_policy("llama_untied_biases"), [dataclasses.replace(groups[0], rollouts=tuple(rollouts))], DAPO
    )
    factors = np.array([[0, 0, 0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0, 0, 0]])
    group = dataclasses.replace(combinations("a", (0, 1, 2), by_token=True), factors=factors, has_null=np.array([0, 0]))
    for one in measure_group_weights(prepared, measure_step(prepared), [group]):
        assert one.counts[0] == pytest.approx(one.counts[1], rel=1e-3)  # one advantage for all is a factor


def test_a_group_without_rollouts_asked_for_has_nothing() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    assert measure_group_weights(prepared, measure_step(prepared), []) == ()


def test_gradients_that_disagree_with_the_gram_matrix_are_refused() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 3), DAPO)
    step = measure_step(prepared)
    wrong = dataclasses.replace(step, gram=step.gram * 1.01)
    with pytest.raises(VerificationError, match="disagree with the rollouts' Gram matrix"):
        measure_group_weights(prepared, wrong, [combinations("a", (0, 1, 2))])
