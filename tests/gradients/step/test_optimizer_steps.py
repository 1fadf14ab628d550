"""First steps of optimizers, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gradscope.gradients.step.optimizer_steps import OPTIMIZERS, measure_optimizer_steps


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
    (found,) = measure_optimizer_steps(parameters(), gradients(), None)
    gradient = gradients()["a"].double().numpy()
    left, values, right = np.linalg.svd(gradient, full_matrices=False)
    assert (found.tensor, found.num_entries) == ("a", 96)
    assert found.num_moved is None
    assert found.products[0, 0] == pytest.approx(np.sum(gradient**2), rel=1e-5)
    assert found.products[1, 1] == pytest.approx(96, rel=1e-4)
    assert found.products[0, 1] == pytest.approx(np.sum(np.abs(gradient)), rel=1e-4)
    np.testing.assert_allclose(found.singular_values[0], values, rtol=1e-5)
    # Muon's own approximation of U V' leaves singular values around one
    muon = found.products[0, 2] / np.sqrt(found.products[0, 0] * found.products[2, 2])
    exact = np.sum(gradient * (left @ right)) / np.linalg.norm(gradient) / np.sqrt(8)
    assert muon == pytest.approx(exact, abs=0.03)
    assert np.ptp(found.singular_values[2]) / found.singular_values[2].max() < 0.5


def test_bfloat16_sees_steps_of_one_size() -> None:
    weights, rate = parameters(), 1e-3
    (found,) = measure_optimizer_steps(weights, gradients(), rate)
    gradient, weight = gradients()["a"].double(), weights["a"].detach().double()
    size = rate * np.sqrt(96)
    before = weight.to(torch.bfloat16)
    steps = [-gradient / gradient.norm() * size, -rate * gradient.sign()]
    expected = [int((before != (weight + step).to(torch.bfloat16)).sum()) for step in steps]
    assert found.num_moved is not None
    assert list(found.num_moved[:2]) == expected
    assert 0 < found.num_moved[1] < 96


def test_nothing_of_the_weights_or_of_their_gradients_is_changed() -> None:
    weights, given = parameters(), gradients()
    before = {name: one.detach().clone() for name, one in weights.items()}
    own = {name: one.clone() for name, one in given.items()}
    measure_optimizer_steps(weights, given, 1e-3)
    assert all(torch.equal(one, before[name]) and one.grad is None for name, one in weights.items())
    assert all(torch.equal(one, own[name]) for name, one in given.items())
    assert list(OPTIMIZERS) == ["sgd", "adam", "muon"]
