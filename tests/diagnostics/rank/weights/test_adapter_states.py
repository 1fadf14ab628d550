"""Whether an adapter does anything yet."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.diagnostics.rank.weights.adapter_states import adapter_states
from gradscope.estimate import Estimate
from gradscope.gradients.model.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
DOWN, UP = RNG.normal(size=(3, 40)), RNG.normal(size=(30, 3))


def checkpoint(num_updates: int, up: np.ndarray) -> Checkpoint:
    return Checkpoint(num_updates=num_updates, matrices={}, factors={"q": lambda: (DOWN, up)})


def test_a_fresh_adapter_and_one_that_was_trained() -> None:
    checkpoints = [checkpoint(0, 0 * UP), checkpoint(5, UP)]
    fresh, trained = adapter_states("q", checkpoints, [np.zeros((30, 40)), 2 * UP @ DOWN], Estimate.exact(4.0))
    assert fresh.b_norm.value == 0.0
    assert "zero" in str(fresh.effective_rank.undefined)
    assert fresh.alignment.undefined == "one of the two factors is still zero"
    assert fresh.product_size.value == 0.0
    product = UP @ DOWN
    shares = np.linalg.svd(product, compute_uv=False)[:3] / np.linalg.svd(product, compute_uv=False).sum()
    assert trained.effective_rank.value == pytest.approx(np.exp(-np.sum(shares * np.log(shares))))
    assert trained.alignment.value == pytest.approx(np.linalg.norm(product) / np.linalg.norm(UP) / np.linalg.norm(DOWN))
    assert trained.product_size.value == pytest.approx(np.linalg.norm(2 * product) / 4)
    assert trained.a_norm.value == pytest.approx(np.linalg.norm(DOWN))
    assert trained.b_norm.value == pytest.approx(np.linalg.norm(UP))
    assert (trained.tensor, trained.num_updates, trained.rank) == ("q", 5, 3)
    # these factors are unrelated, and so are those of the null
    assert trained.unrelated_rank.value == pytest.approx(trained.effective_rank.value, rel=0.1)
    assert trained.unrelated_alignment.value == pytest.approx(trained.alignment.value, rel=0.1)


def test_a_whole_model_has_none() -> None:
    assert adapter_states("q", [Checkpoint(num_updates=0, matrices={})], [UP], Estimate.exact(1.0)) == []
