from __future__ import annotations

import numpy as np
import pytest
import torch

from gradscope.gradients.layers.factors import OuterProduct, Scatter
from gradscope.gradients.tokens.count_sketch import Sketch
from tests.gradients.models import relative

CPU = torch.device("cpu")


def sketched(rows: torch.Tensor, num_buckets: int, seed: int) -> np.ndarray:
    sketch = Sketch(len(rows), num_buckets, seed, CPU)
    sketch.add_rows("weight", 0, range(len(rows)), rows)
    return sketch.gram.numpy()


def test_inner_products_are_unbiased_and_their_error_is_the_stated_one() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 900)) * np.linspace(0.1, 3, 900)  # 18 stretches of unlike columns
    gram, num_buckets, num_seeds = rows @ rows.T, 50, 600
    found = np.stack([sketched(torch.from_numpy(rows), num_buckets, seed) for seed in range(num_seeds)])
    energy = np.trace(gram)
    stated = np.sqrt((1 + np.sum(gram**2) / energy**2) / num_buckets)
    errors = np.linalg.norm(found - gram, axis=(1, 2)) / energy
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(stated, rel=0.15)
    # the mean of many has an error smaller by the root of their number
    assert np.linalg.norm(found.mean(axis=0) - gram) / energy < 1.5 * stated / np.sqrt(num_seeds)


def test_fewer_columns_than_buckets_lose_nothing() -> None:
    rows = torch.randn(3, 40, dtype=torch.float64)
    assert relative(sketched(rows, 64, 0), (rows @ rows.t()).numpy()) < 1e-12


@pytest.mark.parametrize("slice_bytes", [1, 300, 2**20])
def test_columns_meet_in_the_same_way_however_they_come(slice_bytes: int) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(2, 4, 7), torch.randn(2, 4, 5)
    ids, grads = torch.randint(0, 7, (2, 4)), torch.randn(2, 4, 5)
    dense = torch.einsum("nto,nti->noi", left, right)
    for row in range(2):
        dense[row].index_add_(0, ids[row], grads[row])
    uses = [OuterProduct(left=tuple(left), right=tuple(right)), Scatter(ids=tuple(ids), grads=tuple(grads))]
    found, expected = Sketch(2, 6, 3, CPU, slice_bytes), Sketch(2, 6, 3, CPU)
    found.add_parameter("table", torch.Size([7, 5]), torch.float32, [((0, 1), uses)])
    expected.add_rows("table", 0, (0, 1), dense.flatten(1))
    torch.testing.assert_close(found.rows, expected.rows, rtol=1e-5, atol=1e-5)
    alone = Sketch(2, 6, 3, CPU, slice_bytes)
    alone.add_parameter("table", torch.Size([7, 5]), torch.float32, [((1, 0), uses[1:])])
    swapped = torch.zeros(2, 7, 5)
    for row in range(2):
        swapped[1 - row].index_add_(0, ids[row], grads[row])
    expected = Sketch(2, 6, 3, CPU)
    expected.add_rows("table", 0, (0, 1), swapped.flatten(1))
    torch.testing.assert_close(alone.rows, expected.rows, rtol=1e-5, atol=1e-5)
