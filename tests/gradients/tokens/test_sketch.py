import dataclasses

import numpy as np
import pytest
import torch

from gradscope.errors import VerificationError
from gradscope.gradients.layers.factors import OuterProduct, Scatter
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens import measure
from gradscope.gradients.tokens import sketch as sketch_module
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.gradients.tokens.sketch import Sketch
from tests.gradients.models import DAPO, measured_step, relative, tiny_groups, tiny_policy
from tests.gradients.tokens.test_measure import Gained, policy_of


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2_tied_conv1d", "llama_untied_biases"])
def test_sketched_tokens_are_as_far_from_the_exact_ones_as_stated(name: str) -> None:
    policy, groups = tiny_policy(name), tiny_groups(1, 3)
    if name.startswith("llama"):
        policy.model.model.layers[1].mlp.up_proj.__class__ = Gained  # goes the slow way
        policy = policy_of(policy.model)
    step = measured_step(policy, groups, DAPO)
    (exact,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    energy = np.trace(exact.gram)
    stated = np.sqrt((1 + np.sum(exact.gram**2) / energy**2) / 256)
    errors = []
    for seed in range(3):
        (found,) = measure_tokens(prepare_step(policy, groups, DAPO), step, num_buckets=256, seed=seed)
        assert found.num_buckets == 256
        assert found.slow_parameters == exact.slow_parameters
        assert found.table.rows == exact.table.rows
        assert found.verification.row_error < found.verification.tolerance
        errors.append(np.linalg.norm(found.gram - exact.gram) / energy)
    assert 0.3 * stated < np.sqrt(np.mean(np.square(errors))) < 2 * stated


def test_a_sketch_of_wrong_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)

    def shrunk(*arguments):
        sketch, slow = sketch_module.sketch_rows(*arguments)
        sketch.rows *= 0.99
        return sketch, slow

    monkeypatch.setattr(measure, "sketch_rows", shrunk)
    with pytest.raises(VerificationError, match="token rows disagree with one backward pass a token"):
        measure_tokens(prepare_step(policy, groups, DAPO), step, num_buckets=64)


def test_a_parameter_that_no_sketch_holds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)
    monkeypatch.setattr(sketch_module, "lockstep", lambda *_: frozenset(list(policy.trainable)[1:]))
    with pytest.raises(VerificationError, match=r"sketches of token rows miss 1 parameters, among them .*embed"):
        measure_tokens(prepare_step(policy, [dataclasses.replace(groups[0])], DAPO), step, num_buckets=64)


CPU = torch.device("cpu")


def sketched(rows: torch.Tensor, num_buckets: int, seed: int) -> np.ndarray:
    sketch = Sketch(len(rows), num_buckets, seed, CPU)
    sketch.add_rows("weight", 0, range(len(rows)), rows)
    return sketch.gram.numpy()


@pytest.mark.slow
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
