import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step import directions
from gradscope.gradients.step.measure import measure_step
from gradscope.metrics.gram.geometry import row_sparsity
from gradscope.metrics.gram.spectrum import rank_estimates
from tests.gradients import models


@pytest.mark.parametrize("batch_tokens", [None, 12])
def test_spectra_are_those_of_the_ordinary_gradient(batch_tokens):
    policy, groups, seen = models.tiny_policy("gpt2_tied_conv1d"), models.tiny_groups(), []
    spectra = directions.measure_weight_spectra(
        prepare_step(policy, groups, models.DAPO, batch_tokens and TokenBudget(batch_tokens)),
        progress=lambda *event: seen.append(event),
    )
    rollouts = models.rollouts_of(groups)
    loss = sum(-rollout.advantage * models.plain_logprobs(policy.model, rollout).sum() for rollout in rollouts)
    (models.weight_of(groups) * loss).backward()
    matrices = {name: p.grad.double().numpy() for name, p in policy.trainable.items() if p.dim() == 2}
    assert [spectrum.tensor for spectrum in spectra] == list(matrices)
    assert seen[-1] == (len(matrices), len(matrices), "tensors")
    for spectrum in spectra:
        matrix = matrices[spectrum.tensor]
        expected = np.linalg.svd(matrix, compute_uv=False)
        assert spectrum.shape == matrix.shape
        np.testing.assert_allclose(spectrum.singular_values, expected, atol=1e-5 * expected[0])
        gini = row_sparsity(np.abs(matrix).ravel())["gini"].value
        assert spectrum.entries["gini"].value == pytest.approx(gini, abs=1e-5)


def test_a_matrix_without_gradient_has_a_zero_spectrum_and_norm():
    """LoRA with B = 0: nothing reaches A."""
    policy = models.tiny_policy("llama_untied_biases", lora=True)
    for name, parameter in policy.trainable.items():
        if "lora_B" in name:
            parameter.data.zero_()
    prepared = prepare_step(policy, models.tiny_groups(), models.DAPO)
    for spectrum in directions.measure_weight_spectra(prepared):
        assert bool(spectrum.singular_values.any()) == ("lora_B" in spectrum.tensor)
    norms = {tensor.tensor: tensor.norm for tensor in directions.measure_tensor_norms(prepared)}
    assert {name for name, norm in norms.items() if norm > 0} == {name for name in norms if "lora_B" in name}
    assert np.isfinite(list(norms.values())).all()


def test_spectra_need_logged_advantages():
    with pytest.raises(InputError, match="has no logged advantage"):
        directions.measure_weight_spectra(
            prepare_step(
                models.tiny_policy("llama_untied_biases"),
                models.changed(models.tiny_groups(1, 1), advantage=None),
                models.DAPO,
            )
        )


def test_squares_of_tensors_add_up_to_the_gram_matrix() -> None:
    prepared = prepare_step(models.tiny_policy("gpt2_tied_conv1d"), models.tiny_groups(), models.DAPO)
    result, gram = directions.measure_tensor_norms(prepared), measure_step(prepared).logged_gram
    assert [tensor.tensor for tensor in result] == list(prepared.policy.trainable)
    assert sum(tensor.norm**2 for tensor in result) == pytest.approx(float(gram.sum()), rel=1e-4)
    assert sum(tensor.num_entries for tensor in result) == prepared.policy.num_parameters


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
    (steps,) = directions.measure_optimizer_steps(parameters(), gradients(), None)
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
    (result,) = directions.measure_optimizer_steps(weights, gradients(), rate)
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
    directions.measure_optimizer_steps(weights, inputs, 1e-3)
    for name, weight in parameters().items():
        assert torch.equal(weights[name], weight)
        assert weights[name].grad is None
    assert all(torch.equal(inputs[name], gradient) for name, gradient in gradients().items())
    assert list(directions.OPTIMIZERS) == ["sgd", "adam", "muon"]


FACTORS = np.array([[1.0, -0.5, -0.5], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])


def combinations(group_id: str, rollouts: tuple[int, ...], *, by_token: bool = False) -> directions.Combinations:
    factors = np.hstack([FACTORS, np.zeros_like(FACTORS)]) if by_token else FACTORS
    return directions.Combinations(
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
        chosen = models.plain_logprobs(model, prepared.plan.sequences[rollout])
        total = total + factor * (chosen * prepared.plan.weights[rollout].to(chosen)).sum()
    names = [name for name, parameter in model.named_parameters() if parameter.dim() == 2 and parameter.requires_grad]
    weights = [model.get_parameter(name) for name in names]
    result = torch.autograd.grad(total, weights, allow_unused=True)
    return {name: grad for name, grad in zip(names, result, strict=True) if grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lora", "max_bytes"), [*((*case, 2**30) for case in models.TYPICAL), ("qwen3_gqa_norms", False, 1)]
)
def test_every_combination_is_that_of_a_backward_pass(name: str, lora: bool, max_bytes: int) -> None:
    prepared = prepare_step(models.tiny_policy(name, lora=lora), models.tiny_groups(2, 3), models.DAPO)
    step = measure_step(prepared)
    assert directions.measure_group_weights(prepared, step, []) == ()
    groups = [combinations("a", (0, 1, 2)), combinations("b", (3, 4, 5))]
    prepared.budget.row_bytes = max_bytes
    ranks = directions.measure_group_weights(prepared, step, groups)
    by_name = {(tensor.group_id, tensor.tensor): tensor for tensor in ranks}
    for group in groups:
        for index, factors in enumerate(FACTORS):
            for tensor, grad in plain_gradients(prepared, group.rollouts, factors).items():
                values = torch.linalg.svdvals(grad.double()).numpy()
                counts = by_name[group.group_id, tensor].counts[index]
                ranks = rank_estimates(values, 0.0)
                expected = [ranks[name].value for name in ("effective_rank", "stable_rank", "participation_ratio")]
                assert counts[:3] == pytest.approx(expected, rel=2e-3)
                assert counts[3] == pytest.approx(np.sum(values[:2] ** 2) / np.sum(values**2), rel=1e-4)


def test_unrelated_rows_have_the_norms_of_the_smaller_side() -> None:
    prepared = prepare_step(models.tiny_policy("llama_untied_biases"), models.tiny_groups(1, 3), models.DAPO)
    for first in directions.measure_group_weights(prepared, measure_step(prepared), [combinations("a", (0, 1, 2))]):
        assert np.isnan(first.gaussian[1:]).all()
        assert first.counts[0, 0] <= first.gaussian[0, 0] * 1.05 <= min(first.shape) * 1.05


def test_the_second_channel_is_the_gradient_with_the_logged_advantages_of_tokens() -> None:
    by_token = {"token_advantages": lambda rollout: (2.0,) * len(rollout.completion_ids), "advantage": None}
    prepared = prepare_step(
        models.tiny_policy("llama_untied_biases"), models.changed(models.tiny_groups(1, 3), **by_token), models.DAPO
    )
    factors = np.array([[0, 0, 0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0, 0, 0]])
    group = replace(combinations("a", (0, 1, 2), by_token=True), factors=factors, has_null=np.array([0, 0]))
    for first in directions.measure_group_weights(prepared, measure_step(prepared), [group]):
        assert first.counts[0] == pytest.approx(first.counts[1], rel=1e-3)  # one advantage for all is a factor


def test_gradients_that_disagree_with_the_gram_matrix_are_refused() -> None:
    prepared = prepare_step(models.tiny_policy("llama_untied_biases"), models.tiny_groups(1, 3), models.DAPO)
    step = measure_step(prepared)
    wrong = replace(step, gram=step.gram * 1.01)
    with pytest.raises(VerificationError, match="disagree with the rollouts' Gram matrix"):
        directions.measure_group_weights(prepared, wrong, [combinations("a", (0, 1, 2))])
