from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gradscope.errors import UsageError, VerificationError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.factors import OuterProduct, Scatter
from gradscope.gradients.model.policy import token_sequences
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens import lockstep, measure
from gradscope.gradients.tokens import lockstep as lockstep_module
from gradscope.gradients.tokens.lockstep import Part, Sketch, _add_token_parameter, _require_fit, lockstep_gram
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.gradients.tokens.rows import TokenRow, chunks_of
from tests.gradients import models
from tests.gradients.models import DAPO, measured_step, naive_token_rows, relative_gram, tiny_groups, tiny_policy
from tests.gradients.tokens.test_measure import Gained


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 100])
def test_chunks_change_nothing(size):
    policy, groups = tiny_policy("qwen3_gqa_norms", dtype=torch.float64), tiny_groups(1, 3)
    sequences = token_sequences(policy, groups)
    rows = [TokenRow(sequence=i, position=t) for i, s in enumerate(sequences) for t in range(len(s.completion_ids))]
    accumulator = GramAccumulator(len(rows), policy.device)
    slow = lockstep_gram(policy.model, policy.trainable, chunks_of(rows, sequences, size), 1.0, accumulator)
    assert slow == frozenset()
    assert relative_gram(accumulator.gram.numpy(), naive_token_rows(policy, groups)) < 1e-12


def test_too_many_rows_for_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(lockstep, "LAYER_BYTES", 10)
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    chunks = chunks_of([TokenRow(sequence=0, position=0)], token_sequences(policy, groups))

    with pytest.raises(UsageError, match=r"output gradients of one layer over 1 token rows take .* the budget is"):
        lockstep_gram(policy.model, policy.trainable, chunks, 1.0, GramAccumulator(1, policy.device))


def test_the_head_keeps_no_output_gradients_so_its_vocabulary_need_not_fit() -> None:
    layer, head = (SimpleNamespace(extra=None, output=torch.zeros(2, size)) for size in (8, 1000))
    chunk, trace = SimpleNamespace(rows=[0, 1]), SimpleNamespace(segments=[[layer], [head]])
    line: Any = SimpleNamespace(chunk=chunk, trace=trace)
    _require_fit([line], 1, 128)
    _require_fit([line], 0, 128)
    with pytest.raises(UsageError, match="one layer over 2 token rows") as refused:
        _require_fit([line], 0, 127)
    assert refused.value.hint == "Take fewer tokens: --max-tokens 1"


CPU = torch.device("cpu")


def added(shape: tuple[int, int], parts: list[Part], num_rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """The Gram matrix by fewer columns, and by the matrices as they are."""
    result, expected = GramAccumulator(num_rows, CPU), GramAccumulator(num_rows, CPU)
    _add_token_parameter(result, torch.Size(shape), torch.float32, parts)
    expected.add_parameter(torch.Size(shape), torch.float32, parts)
    assert result.num_parameters == expected.num_parameters == shape[0] * shape[1]
    return result.gram, expected.gram


@pytest.mark.parametrize("is_transposed", [False, True], ids=["linear", "conv1d"])
@pytest.mark.parametrize("num_inputs", [3, 40], ids=["as they are", "in a common basis"])
def test_prefixes_of_shared_inputs(num_inputs: int, is_transposed: bool) -> None:
    torch.manual_seed(0)
    parts: list[Part] = []
    for rows in ((0, 1), (3, 2)):
        inputs, grads = torch.randn(5, num_inputs), torch.randn(2, 5, 6)
        cut, shared = tuple(grad[:length] for grad, length in zip(grads, (4, 5), strict=True)), (inputs[:4], inputs)
        use = OuterProduct(left=shared, right=cut) if is_transposed else OuterProduct(left=cut, right=shared)
        parts.append((rows, [use]))
    shape = (num_inputs, 6) if is_transposed else (6, num_inputs)
    torch.testing.assert_close(*added(shape, parts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_tied", [False, True])
def test_rows_of_one_position_have_rank_one(is_tied: bool) -> None:
    torch.manual_seed(1)
    parts: list[Part] = [
        (rows, [OuterProduct(left=tuple(torch.randn(2, 1, 9)), right=tuple(torch.randn(2, 1, 5)))])
        for rows in ((1, 0), (2, 3))
    ]
    if is_tied:
        table = Scatter(ids=(torch.tensor([3, 3, 8]), torch.tensor([0])), grads=(torch.randn(3, 5), torch.randn(1, 5)))
        parts.append(((0, 3), [table]))
    torch.testing.assert_close(*added((9, 5), parts), rtol=1e-5, atol=1e-5)


def test_a_matrix_used_twice_by_a_row_is_formed() -> None:
    torch.manual_seed(2)
    uses = [OuterProduct(left=tuple(torch.randn(4, 1, 3)), right=tuple(torch.randn(4, 1, 2))) for _ in range(2)]
    torch.testing.assert_close(*added((3, 2), [((0, 1, 2, 3), list(uses))]), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2_tied_conv1d", "llama_untied_biases"])
def test_sketched_tokens_are_as_far_from_the_exact_ones_as_stated(name: str) -> None:
    policy, groups = tiny_policy(name), tiny_groups(1, 3)
    if name.startswith("llama"):
        policy.model.model.layers[1].mlp.up_proj.__class__ = Gained  # goes the slow way
        policy = models.policy_of(policy.model)
    step = measured_step(policy, groups, DAPO)
    (exact,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    energy = np.trace(exact.gram)
    stated = np.sqrt((1 + np.sum(exact.gram**2) / energy**2) / 256)
    errors = []
    for seed in range(3):
        (token_gram,) = measure_tokens(prepare_step(policy, groups, DAPO), step, num_buckets=256, seed=seed)
        assert token_gram.num_buckets == 256
        assert token_gram.slow_parameters == exact.slow_parameters
        assert token_gram.table.rows == exact.table.rows
        errors.append(np.linalg.norm(token_gram.gram - exact.gram) / energy)
        shifts = np.linalg.eigvalsh(token_gram.gram) - np.linalg.eigvalsh(exact.gram)
        assert np.max(np.abs(shifts)) < 1.5 * stated * energy
    assert 0.3 * stated < np.sqrt(np.mean(np.square(errors))) < 2 * stated


def test_a_sketch_of_wrong_rows_or_without_a_parameter_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    prepared, step = prepare_step(policy, groups, DAPO), measured_step(policy, groups, DAPO)

    def shrunk(*arguments):
        sketch, slow = lockstep_module.sketch_rows(*arguments)
        sketch.rows *= 0.99
        return sketch, slow

    with monkeypatch.context() as patch:
        patch.setattr(measure, "sketch_rows", shrunk)
        with pytest.raises(VerificationError, match="token rows disagree with one backward pass a token"):
            measure_tokens(prepared, step, num_buckets=64)
    monkeypatch.setattr(lockstep_module, "lockstep", lambda *_: frozenset(list(policy.trainable)[1:]))
    with pytest.raises(VerificationError, match=r"sketches of token rows miss 1 parameters, among them .*embed"):
        measure_tokens(prepared, step, num_buckets=64)


def sketched(rows: torch.Tensor, num_buckets: int, seed: int) -> np.ndarray:
    sketch = Sketch(len(rows), num_buckets, seed, CPU)
    sketch.add_rows("weight", 0, range(len(rows)), rows)
    return sketch.gram.numpy()


@pytest.mark.slow
def test_inner_products_are_unbiased_and_their_error_is_the_stated_one() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 900)) * np.linspace(0.1, 3, 900)  # 18 stretches of unlike columns
    gram, num_buckets, num_seeds = rows @ rows.T, 50, 600
    result = np.stack([sketched(torch.from_numpy(rows), num_buckets, seed) for seed in range(num_seeds)])
    energy = np.trace(gram)
    stated = np.sqrt((1 + np.sum(gram**2) / energy**2) / num_buckets)
    errors = np.linalg.norm(result - gram, axis=(1, 2)) / energy
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(stated, rel=0.15)
    # the mean of many has an error smaller by the root of their number
    assert np.linalg.norm(result.mean(axis=0) - gram) / energy < 1.5 * stated / np.sqrt(num_seeds)


def test_fewer_columns_than_buckets_lose_nothing() -> None:
    rows = torch.randn(3, 40, dtype=torch.float64)
    assert relative_gram(sketched(rows, 64, 0), rows.numpy()) < 1e-12


@pytest.mark.parametrize("rows", [(0, 1), (1, 0)])
@pytest.mark.parametrize("slice_bytes", [1, 300, 2**20])
def test_columns_meet_in_the_same_way_however_they_come(slice_bytes: int, rows: tuple[int, int]) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(2, 4, 7), torch.randn(2, 4, 5)
    ids, grads = torch.randint(0, 7, (2, 4)), torch.randn(2, 4, 5)
    product = OuterProduct(left=tuple(left), right=tuple(right))
    uses = [Scatter(ids=tuple(ids), grads=tuple(grads)), *([product] if rows == (0, 1) else [])]
    dense = torch.zeros(2, 7, 5)
    for index, row in enumerate(rows):
        for use in uses:
            use.add_to(index, 0, dense[row])
    result, expected = Sketch(2, 6, 3, CPU, slice_bytes), Sketch(2, 6, 3, CPU)
    result.add_parameter("table", torch.Size([7, 5]), torch.float32, [(rows, uses)])
    expected.add_rows("table", 0, (0, 1), dense.flatten(1))
    torch.testing.assert_close(result.rows, expected.rows, rtol=1e-5, atol=1e-5)
