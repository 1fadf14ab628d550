import dataclasses

import numpy as np
import pytest
import torch

from gradscope.errors import VerificationError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers.factors import OuterProduct, Scatter
from gradscope.gradients.model.batches import TokenSequence
from gradscope.gradients.model.policy import token_sequences
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens import measure
from gradscope.gradients.tokens import rows as rows_module
from gradscope.gradients.tokens.lockstep import lockstep_gram
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.gradients.tokens.rows import Sketch, TokenRow, _sample_tokens, chunks_of, token_loop_rows
from tests.gradients.models import DAPO, measured_step, naive_token_rows, relative, tiny_groups, tiny_policy
from tests.gradients.tokens.test_measure import Gained, measured, policy_of


def test_every_token_is_equally_likely_to_be_drawn():
    rows = [TokenRow(sequence=0, position=position) for position in range(6)]
    drawn = [row.position for seed in range(600) for row in _sample_tokens(rows, 2, seed)]
    counts = np.bincount(drawn, minlength=6)
    assert np.all(np.abs(counts - 200) < 60)
    assert _sample_tokens(rows, 9, 0) == tuple(rows)


def test_a_sample_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one token is needed"):
        _sample_tokens([TokenRow(sequence=0, position=0)], 0, 0)


def test_chunks_are_neighbors_of_one_sequence_and_end_with_their_last_token():
    sequences = [
        TokenSequence(
            group_id="g", sample=sample, prompt_ids=(1,), completion_ids=(2, 3, 4, 5), mask=(True,) * 4, inferred=False
        )
        for sample in range(2)
    ]
    places = [(1, 0), (0, 3), (0, 0), (0, 1)]
    rows = [TokenRow(sequence=sequence, position=position) for sequence, position in places]
    first, second, third = chunks_of(rows, sequences, 2)
    assert (first.rows, first.positions, first.sequence, first.prefix.completion_ids) == ((2, 3), (0, 1), 0, (2, 3))
    assert (second.rows, second.positions, second.prefix.length) == ((1,), (3,), 5)
    assert (third.rows, third.sequence, third.prefix.mask) == ((0,), 1, (True,))


def test_a_model_without_a_list_of_layers_goes_the_slow_way():
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(1, 2)
    policy.model.config.num_hidden_layers = 7
    rows = naive_token_rows(policy, groups)
    sequences = token_sequences(policy, groups)
    chunks = chunks_of([TokenRow(sequence=0, position=0)], sequences)
    accumulator = GramAccumulator(1, policy.device)
    assert lockstep_gram(policy.model, policy.trainable, chunks, 1.0, accumulator) == frozenset(policy.trainable)
    token_loop_rows(policy.model, policy.trainable, chunks, 1.0, accumulator.add_rows)
    assert relative(accumulator.gram.numpy(), rows[:1] @ rows[:1].T) < 1e-5


def test_weights_hold_per_token_advantages_ratio_and_mask():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    first, second = groups[0].rollouts
    first = dataclasses.replace(first, token_advantages=tuple(np.linspace(-1, 1, len(first.completion_ids))))
    second = dataclasses.replace(second, mask=(False,) + (True,) * (len(second.completion_ids) - 1))
    groups = [dataclasses.replace(groups[0], rollouts=(first, second))]
    (found,) = measured(policy, groups)
    counted = len(first.completion_ids) + len(second.completion_ids) - 1
    assert found.table.num_tokens == counted
    np.testing.assert_allclose(found.table.score_weights, 1 / counted)
    expected = np.concatenate([first.token_advantages, [second.advantage] * (len(second.completion_ids) - 1)])
    np.testing.assert_allclose(found.table.logged_weights, -expected / counted, rtol=1e-6)


def test_without_logged_advantages_there_are_no_logged_weights():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    rollouts = tuple(dataclasses.replace(rollout, advantage=None) for rollout in groups[0].rollouts)
    (found,) = measured(policy, [dataclasses.replace(groups[0], rollouts=rollouts)])
    assert found.table.logged_weights is None


def test_a_group_that_is_all_masked_has_no_matrix():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(2, 2)
    silent = tuple(
        dataclasses.replace(rollout, mask=(False,) * len(rollout.completion_ids)) for rollout in groups[0].rollouts
    )
    found = measured(policy, [dataclasses.replace(groups[0], rollouts=silent), groups[1]])
    assert [gram.table.group_id for gram in found] == [groups[1].group_id]
    assert set(found[0].table.rollouts) == {2, 3}


def test_importance_ratios_and_clip_are_factors_of_a_token():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    plain = measured_step(policy, groups, DAPO)
    rollouts = tuple(
        dataclasses.replace(rollout, advantage=1.0, logprobs=tuple(logprobs - 0.3))
        for rollout, logprobs in zip(groups[0].rollouts, plain.logprobs, strict=True)
    )
    objective = Objective(loss_type="dapo", importance_ratio=True, epsilon_low=0.2, epsilon_high=0.2)
    (found,) = measured(policy, [dataclasses.replace(groups[0], rollouts=rollouts)], objective)
    np.testing.assert_allclose(found.table.score_weights, np.exp(0.3) / found.table.num_tokens, rtol=1e-5)
    assert found.table.logged_weights is not None
    assert not found.table.logged_weights.any()  # a ratio of 1.35 is beyond the clip


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
        sketch, slow = rows_module.sketch_rows(*arguments)
        sketch.rows *= 0.99
        return sketch, slow

    monkeypatch.setattr(measure, "sketch_rows", shrunk)
    with pytest.raises(VerificationError, match="token rows disagree with one backward pass a token"):
        measure_tokens(prepare_step(policy, groups, DAPO), step, num_buckets=64)


def test_a_parameter_that_no_sketch_holds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)
    monkeypatch.setattr(rows_module, "lockstep", lambda *_: frozenset(list(policy.trainable)[1:]))
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
