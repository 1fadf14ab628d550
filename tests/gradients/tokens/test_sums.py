import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.gradients.plan.losses import SamplerCorrection
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens import sums
from gradscope.gradients.tokens import sums as sums_module
from gradscope.rollouts.groups import RolloutGroup
from tests.gradients import models

NUM_WEIGHTINGS = 3


def tokens_and_weights(prepared: PreparedStep, seed: int = 0) -> tuple[sums.CountedTokens, np.ndarray]:
    tokens = sums.counted_tokens(prepared, measure_step(prepared))
    assert tokens is not None
    weights = np.random.default_rng(seed).normal(size=(NUM_WEIGHTINGS, len(tokens.groups)))
    weights[1, tokens.groups == 0] = 0.0  # a weighting that leaves out a whole group
    return tokens, weights


def by_group(rows: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The products of sums as plain matrices; rows are [N, P], or [V, N, P] where weightings have rows of their own."""
    all_rows = np.broadcast_to(rows, (len(weights), *rows.shape[-2:]))
    by_hand = [
        [w[groups == j] @ r[groups == j] for j in np.unique(groups)] for w, r in zip(weights, all_rows, strict=True)
    ]
    return np.einsum("vjp,wkp->vjwk", by_hand, by_hand)


@pytest.mark.parametrize(
    ("name", "lora", "max_bytes"),  # in no bytes the sums are taken by layer, in a gigabyte by group
    [*((*case, 0) for case in models.TYPICAL), *(("qwen3_gqa_norms", lora, 2**30) for lora in (False, True))],
)
def test_sums_are_those_of_one_backward_pass_a_token(name: str, lora: bool, max_bytes: int) -> None:
    policy, groups = models.tiny_policy(name, lora=lora), models.tiny_groups(3, 2)
    prepared = prepare_step(policy, groups, models.DAPO)
    tokens, weights = tokens_and_weights(prepared)
    prepared.budget.row_bytes = max_bytes
    result = sums.measure_token_sums(prepared, tokens, weights, np.zeros(NUM_WEIGHTINGS, dtype=bool))
    assert models.relative(result, by_group(models.naive_token_rows(policy, groups), weights, tokens.groups)) < 2e-5


@pytest.mark.parametrize("max_bytes", [2**30, 0], ids=["by group", "by layer"])
def test_a_weighting_of_entropies_is_their_gradient(max_bytes: int) -> None:
    policy, groups = models.tiny_policy("qwen3_gqa_norms"), models.tiny_groups(2, 2)
    prepared = prepare_step(policy, groups, replace(models.DAPO, temperature=0.8))
    tokens, weights = tokens_and_weights(prepared)
    is_entropy = np.array([False, True, False])
    prepared.budget.row_bytes = max_bytes
    result = sums.measure_token_sums(prepared, tokens, weights, is_entropy)
    (model, parameters), scores, entropies = models.plain_model(policy), [], []
    for rollout in models.rollouts_of(groups):
        for logs, token in zip(models.plain_logs(model, rollout, 0.8), rollout.completion_ids, strict=True):
            scores.append(models.flat_gradient(logs[token], parameters))
            entropies.append(models.flat_gradient(-(logs.exp() * logs).sum(), parameters))
    rows = np.where(is_entropy[:, None, None], entropies, scores)
    assert models.relative(result, by_group(rows, weights, tokens.groups)) < 2e-5


@pytest.mark.slow
def test_parameters_without_a_rule_are_added_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = models.tiny_policy("llama_untied_biases"), models.tiny_groups(2, 2)
    prepared = prepare_step(policy, groups, models.DAPO)
    tokens, weights = tokens_and_weights(prepared)
    is_entropy = np.zeros(NUM_WEIGHTINGS, dtype=bool)
    expected = sums.measure_token_sums(prepared, tokens, weights, is_entropy)
    monkeypatch.setattr(sums_module, "stream_gram", lambda step, *_, **__: frozenset(step.policy.trainable))
    prepared.budget.row_bytes = 1
    assert models.relative(sums.measure_token_sums(prepared, tokens, weights, is_entropy), expected) < 1e-5


def tokens_of(groups: list[RolloutGroup], **objective: Any) -> sums.CountedTokens | None:
    prepared = prepare_step(
        models.tiny_policy("llama_untied_biases", lora=True), groups, replace(models.DAPO, **objective)
    )
    return sums.counted_tokens(prepared, measure_step(prepared))


def test_every_token_has_its_position_and_its_weight() -> None:
    groups = models.tiny_groups(2, 3)
    result, rollouts = tokens_of(groups), models.rollouts_of(groups)
    assert result is not None
    lengths = [len(rollout.completion_ids) for rollout in rollouts]
    assert result.lengths == tuple(lengths)
    assert result.rollouts.tolist() == np.repeat(range(6), lengths).tolist()
    assert result.positions.tolist() == [i for length in lengths for i in range(length)]
    assert set(result.groups[result.rollouts < 3]) == {0}
    expected = np.repeat([-rollout.advantage * models.weight_of(groups) for rollout in rollouts], lengths)
    np.testing.assert_allclose(result.weights, expected)
    np.testing.assert_allclose(result.on_policy_weights, expected)
    assert (result.sampler, result.reference) == (None, None)
    assert (result.turns.max(), result.num_groups) == (0, 2)


def test_a_turn_ends_where_a_tool_writes() -> None:
    masks = {0: (True, True, False, True, False, False, True), 1: (False, True, True, True, True, True, False)}
    groups = models.changed(
        models.tiny_groups(1, 2), completion_ids=(3, 4, 5, 6, 7, 8, 9), mask=lambda rollout: masks[rollout.sample]
    )
    result = tokens_of(groups)
    assert result is not None
    assert result.turns.tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 0]
    assert result.positions.tolist() == [0, 1, 3, 6, 1, 2, 3, 4, 5]


def test_a_correction_of_the_loss_is_in_its_weights_and_not_in_those_at_ratio_one() -> None:
    groups = models.changed(
        models.tiny_groups(2, 2), logprobs=lambda r: tuple(-1.0 - i for i in range(len(r.completion_ids)))
    )
    cut = SamplerCorrection(mode="token_truncate", low=None, high=1.5)
    result = tokens_of(groups, correction=cut, needs_sampler=True)
    assert result is not None
    assert result.sampler is not None
    np.testing.assert_allclose(
        result.weights, np.minimum(np.exp(result.logprobs - result.sampler), 1.5) * result.on_policy_weights
    )


def test_a_sampler_without_a_number_is_the_policy_itself_and_other_lengths_are_none() -> None:
    unknown, longer = (
        tokens_of(
            models.changed(
                models.tiny_groups(1, 2), logprobs=lambda r, extra=extra: (math.nan,) * (len(r.completion_ids) + extra)
            )
        )
        for extra in (0, 1)
    )
    assert unknown is not None
    np.testing.assert_array_equal(unknown.sampler, unknown.logprobs)
    assert longer is not None
    assert longer.sampler is None


def test_a_reference_comes_with_a_kl_term_that_is_not_to_the_sampler() -> None:
    tokens = tokens_of(models.tiny_groups(2, 2), beta=0.1)
    assert tokens is not None
    assert tokens.reference is not None
    assert tokens.reference.shape == tokens.logprobs.shape
    assert not np.allclose(tokens.reference, tokens.logprobs)
    sampled = models.changed(models.tiny_groups(2, 2), logprobs=lambda rollout: (-1.0,) * len(rollout.completion_ids))
    tokens = tokens_of(sampled, beta=0.1, kl_to_sampler=True, kl_type="k2")
    assert tokens is not None
    assert tokens.reference is None


def test_there_is_no_table_without_advantages_or_tokens() -> None:
    groups = models.tiny_groups(1, 2)
    assert tokens_of(models.changed(groups, advantage=None)) is None
    assert tokens_of(models.changed(groups, status="truncated"), loss_type="grpo", mask_truncated=True) is None


def table(logprobs: list[float], rollouts: list[int], **rest: object) -> sums.CountedTokens:
    count = len(logprobs)
    zeros = np.zeros(count, dtype=np.int64)
    return sums.CountedTokens(
        **{
            "rollouts": np.array(rollouts),
            "groups": zeros,
            "positions": zeros,
            "turns": zeros,
            "logprobs": np.array(logprobs),
            "entropies": np.zeros(count),
            "sampler": None,
            "reference": None,
            "advantages": np.ones(count),
            "weights": np.ones(count),
            "on_policy_weights": np.ones(count),
            "lengths": (count,),
            **rest,
        }
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [1, 1, 1, 1]),
        ("token_ratio", [4, 0.25, 6, 1]),
        ("tis", [2, 0.25, 2, 1]),
        ("icepop", [4, 0, 0, 1]),
        ("mis", [0, 0, 0, 1]),
        ("geometric_mask", [1, 1, 0, 0]),
        ("token_mask", [0, 0.25, 0, 1]),
        ("sequence_truncate", [1, 1, 3, 3]),
        ("sequence_mask", [1, 1, 0, 0]),
        ("sequence_ratio", [1, 1, 6, 6]),
    ],
)
def test_each_correction_does_what_its_source_says(name: str, expected: list[float]) -> None:
    ratios = [4.0, 0.25, 6.0, 1.0]  # two rollouts of two tokens, whose ratios multiply to 1 and to 6
    tokens = table([math.log(ratio) - 2.0 for ratio in ratios], [0, 0, 1, 1])
    np.testing.assert_allclose(sums.corrected(tokens, np.full(4, -2.0), sums.CORRECTIONS[name]), expected, rtol=1e-12)
    if name == "token_ratio":  # beyond floating point
        assert np.isinf(sums.corrected(table([0.0], [0]), np.array([-1000.0]), sums.CORRECTIONS[name])).all()


def test_whole_sequences_have_one_number_each() -> None:
    factors = sums.sequence_factors([np.log([4.0, 0.251]), np.log([6.0]), np.array([1000.0])])
    names = ["none", "sequence_truncate", "sequence_mask", "geometric_mask", "sequence_ratio"]
    assert list(factors) == names
    np.testing.assert_allclose(factors["none"], [1, 1, 1])
    np.testing.assert_allclose(factors["sequence_truncate"], [1.004, 3, 3])
    np.testing.assert_allclose(factors["sequence_mask"], [1.004, 0, 0])
    np.testing.assert_allclose(factors["geometric_mask"], [0, 0, 0])  # 1.004 ^ (1/2) is beyond 1.001
    np.testing.assert_allclose(factors["sequence_ratio"], [1.004, 6, np.inf])
