from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.directions import (
    OPTIMIZERS,
    Combinations,
    measure_group_weights,
    measure_optimizer_steps,
    measure_tensor_norms,
    measure_weight_spectra,
)
from gradscope.gradients.step.measure import measure_step
from gradscope.metrics.gram.geometry import row_sparsity
from gradscope.metrics.gram.spectrum import effective_rank, participation_ratio, stable_rank
from tests.gradients.models import DAPO, FULL_AND_LORA, plain_logprobs, tiny_groups, tiny_policy


@pytest.mark.parametrize("batch_tokens", [None, 12])
def test_spectra_are_those_of_the_ordinary_gradient(batch_tokens):
    policy, groups = tiny_policy("gpt2_tied_conv1d"), tiny_groups()
    seen = []
    spectra = measure_weight_spectra(
        prepare_step(policy, groups, DAPO, batch_tokens and TokenBudget(batch_tokens)),
        progress=lambda *event: seen.append(event),
    )
    loss = torch.zeros(())
    num_tokens = sum(len(r.completion_ids) for g in groups for r in g.rollouts)
    for rollout in (r for group in groups for r in group.rollouts):
        loss = loss - rollout.advantage / num_tokens * plain_logprobs(policy.model, rollout).sum()
    loss.backward()
    matrices = {name: p for name, p in policy.trainable.items() if p.dim() == 2}
    assert [first.tensor for first in spectra] == list(matrices)
    assert seen[-1] == (len(matrices), len(matrices), "tensors")
    for first in spectra:
        expected = np.linalg.svd(matrices[first.tensor].grad.double().numpy(), compute_uv=False)
        assert first.shape == tuple(matrices[first.tensor].shape)
        np.testing.assert_allclose(first.singular_values, expected, atol=1e-5 * expected[0])
        sizes = np.abs(matrices[first.tensor].grad.double().numpy()).ravel()
        assert first.entries["gini"].value == pytest.approx(row_sparsity(sizes)["gini"].value, abs=1e-5)


def test_a_matrix_without_gradient_has_a_zero_spectrum():
    """LoRA with B = 0: nothing reaches A."""
    policy = tiny_policy("llama_untied_biases", lora=True)
    with torch.no_grad():
        for name, parameter in policy.trainable.items():
            if "lora_B" in name:
                parameter.zero_()
    for first in measure_weight_spectra(prepare_step(policy, tiny_groups(), DAPO)):
        assert bool(first.singular_values.any()) == ("lora_B" in first.tensor)


def test_spectra_need_logged_advantages():
    groups = tiny_groups(1, 1)
    rollout = groups[0].rollouts[0]
    bare = replace(groups[0], rollouts=(replace(rollout, advantage=None),))
    with pytest.raises(InputError, match="has no logged advantage"):
        measure_weight_spectra(prepare_step(tiny_policy("llama_untied_biases"), [bare], DAPO))


@pytest.mark.parametrize("name", ["gpt2_tied_conv1d", "llama_untied_biases"])
def test_their_squares_add_up_to_the_gram_matrix(name: str) -> None:
    policy = tiny_policy(name)
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    result, gram = measure_tensor_norms(prepared), measure_step(prepared).logged_gram
    assert gram is not None
    assert [one.tensor for one in result] == list(policy.trainable)
    assert sum(one.norm**2 for one in result) == pytest.approx(float(gram.sum()), rel=1e-4)
    assert sum(one.num_entries for one in result) == policy.num_parameters


def test_what_has_no_gradient_has_none() -> None:
    """LoRA with B = 0: nothing reaches A."""
    policy = tiny_policy("llama_untied_biases", lora=True)
    for name, parameter in policy.trainable.items():
        if "lora_B" in name:
            parameter.data.zero_()
    norms = {one.tensor: one.norm for one in measure_tensor_norms(prepare_step(policy, tiny_groups(), DAPO))}
    assert {name for name, norm in norms.items() if norm > 0} == {name for name in norms if "lora_B" in name}
    assert np.isfinite(list(norms.values())).all()


def gradients(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(12, 8, generator=generator),
        "norm": torch.randn(8, generator=generator),
        "zero": torch.zeros(3, 3),
    }


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"a": (12, 8), "norm": (8,), "zero": (3, 3), "absent": (2, 2)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def test_sgd_follows_the_gradient_adam_its_signs_and_muon_its_directions() -> None:
    (steps,) = measure_optimizer_steps(parameters(), gradients(), None)
    gradient = gradients()["a"].double().numpy()
    left, values, right = np.linalg.svd(gradient, full_matrices=False)
    assert (steps.tensor, steps.num_entries) == ("a", 96)
    assert steps.num_moved is None
    assert steps.products[0, 0] == pytest.approx(np.sum(gradient**2), rel=1e-5)
    assert steps.products[1, 1] == pytest.approx(96, rel=1e-4)
    assert steps.products[0, 1] == pytest.approx(np.sum(np.abs(gradient)), rel=1e-4)
    np.testing.assert_allclose(steps.singular_values[0], values, rtol=1e-5)
    # Muon's own approximation of U V' leaves singular values around one
    muon = steps.products[0, 2] / np.sqrt(steps.products[0, 0] * steps.products[2, 2])
    exact = np.sum(gradient * (left @ right)) / np.linalg.norm(gradient) / np.sqrt(8)
    assert muon == pytest.approx(exact, abs=0.03)
    assert np.ptp(steps.singular_values[2]) / steps.singular_values[2].max() < 0.5


def test_bfloat16_sees_steps_of_one_size() -> None:
    weights, rate = parameters(), 1e-3
    (result,) = measure_optimizer_steps(weights, gradients(), rate)
    gradient, weight = gradients()["a"].double(), weights["a"].detach().double()
    size = rate * np.sqrt(96)
    before = weight.to(torch.bfloat16)
    steps = [-gradient / gradient.norm() * size, -rate * gradient.sign()]
    expected = [int((before != (weight + step).to(torch.bfloat16)).sum()) for step in steps]
    assert result.num_moved is not None
    assert list(result.num_moved[:2]) == expected
    assert 0 < result.num_moved[1] < 96


def test_nothing_of_the_weights_or_of_their_gradients_is_changed() -> None:
    weights, inputs = parameters(), gradients()
    before = {name: one.detach().clone() for name, one in weights.items()}
    own = {name: one.clone() for name, one in inputs.items()}
    measure_optimizer_steps(weights, inputs, 1e-3)
    assert all(torch.equal(one, before[name]) and one.grad is None for name, one in weights.items())
    assert all(torch.equal(one, own[name]) for name, one in inputs.items())
    assert list(OPTIMIZERS) == ["sgd", "adam", "muon"]


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
    result = torch.autograd.grad(total, weights, allow_unused=True)
    return {name: grad for name, grad in zip(names, result, strict=True) if grad is not None}


@pytest.mark.parametrize(
    ("name", "lora", "max_bytes"),
    [*((*case, 2**30) for case in (*FULL_AND_LORA, ("mixtral", False))), ("qwen3_gqa_norms", False, 1)],
)
def test_every_combination_is_that_of_a_backward_pass(name: str, lora: bool, max_bytes: int) -> None:
    prepared = prepare_step(tiny_policy(name, lora=lora and name != "mixtral"), tiny_groups(2, 3), DAPO)
    step = measure_step(prepared)
    groups = [combinations("a", (0, 1, 2)), combinations("b", (3, 4, 5))]
    by_name = {
        (one.group_id, one.tensor): one for one in measure_group_weights(prepared, step, groups, max_bytes=max_bytes)
    }
    for group in groups:
        for index, factors in enumerate(FACTORS):
            for tensor, grad in plain_gradients(prepared, group.rollouts, factors).items():
                values = torch.linalg.svdvals(grad.double()).numpy()
                counts = by_name[group.group_id, tensor].counts[index]
                expected = [effective_rank(values), stable_rank(values), participation_ratio(values)]
                assert counts[:3] == pytest.approx([one.value for one in expected], rel=2e-3)
                assert counts[3] == pytest.approx(np.sum(values[:2] ** 2) / np.sum(values**2), rel=1e-4)


def test_unrelated_rows_have_the_norms_of_the_smaller_side() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 3), DAPO)
    for first in measure_group_weights(prepared, measure_step(prepared), [combinations("a", (0, 1, 2))]):
        assert np.isnan(first.gaussian[1:]).all()
        assert first.counts[0, 0] <= first.gaussian[0, 0] * 1.05 <= min(first.shape) * 1.05


def test_the_second_channel_is_the_gradient_with_the_logged_advantages_of_tokens() -> None:
    groups = tiny_groups(1, 3)
    rollouts = [
        replace(rollout, token_advantages=(2.0,) * len(rollout.completion_ids or ()), advantage=None)
        for rollout in groups[0].rollouts
    ]
    prepared = prepare_step(tiny_policy("llama_untied_biases"), [replace(groups[0], rollouts=tuple(rollouts))], DAPO)
    factors = np.array([[0, 0, 0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0, 0, 0]])
    group = replace(combinations("a", (0, 1, 2), by_token=True), factors=factors, has_null=np.array([0, 0]))
    for first in measure_group_weights(prepared, measure_step(prepared), [group]):
        assert first.counts[0] == pytest.approx(first.counts[1], rel=1e-3)  # one advantage for all is a factor


def test_a_group_without_rollouts_asked_for_has_nothing() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    assert measure_group_weights(prepared, measure_step(prepared), []) == ()


def test_gradients_that_disagree_with_the_gram_matrix_are_refused() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 3), DAPO)
    step = measure_step(prepared)
    wrong = replace(step, gram=step.gram * 1.01)
    with pytest.raises(VerificationError, match="disagree with the rollouts' Gram matrix"):
        measure_group_weights(prepared, wrong, [combinations("a", (0, 1, 2))])
