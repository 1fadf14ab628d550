import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradscope.gradients.plan.losses import SamplerCorrection
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens import sums as sums_module
from gradscope.gradients.tokens.sums import (
    CORRECTIONS,
    CountedTokens,
    corrected,
    counted_tokens,
    measure_token_sums,
    sequence_factors,
)
from gradscope.rollouts.groups import RolloutGroup
from tests.gradients.models import (
    DAPO,
    FULL_AND_LORA,
    flat_gradient,
    naive_token_rows,
    plain_logs,
    plain_model,
    relative,
    rollouts_of,
    tiny_groups,
    tiny_policy,
    weight_of,
)

NUM_WEIGHTINGS = 3


def asked(prepared: PreparedStep, seed: int = 0) -> tuple[CountedTokens, np.ndarray]:
    tokens = counted_tokens(prepared, measure_step(prepared))
    assert tokens is not None
    weights = np.random.default_rng(seed).normal(size=(NUM_WEIGHTINGS, len(tokens.groups)))
    weights[1, tokens.groups == 0] = 0.0  # a weighting that leaves out a whole group
    return tokens, weights


def by_group(rows: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The sums as plain matrices, [V, J, P], and their products."""
    sums = np.stack([[weight[groups == j] @ rows[groups == j] for j in np.unique(groups)] for weight in weights])
    return np.einsum("vjp,wkp->vjwk", sums, sums)


@pytest.mark.parametrize(
    ("name", "lora", "max_bytes"),  # in no bytes the sums are taken by layer, in a gigabyte by group
    [*((*case, 0) for case in FULL_AND_LORA), *(("qwen3_gqa_norms", lora, 2**30) for lora in (False, True))],
)
def test_sums_are_those_of_one_backward_pass_a_token(name: str, lora: bool, max_bytes: int) -> None:
    policy, groups = tiny_policy(name, lora=lora), tiny_groups(3, 2)
    prepared = prepare_step(policy, groups, DAPO)
    tokens, weights = asked(prepared)
    result = measure_token_sums(prepared, tokens, weights, np.zeros(NUM_WEIGHTINGS, dtype=bool), max_bytes=max_bytes)
    assert relative(result, by_group(naive_token_rows(policy, groups), weights, tokens.groups)) < 2e-5


@pytest.mark.parametrize("max_bytes", [2**30, 0], ids=["by group", "by layer"])
def test_a_weighting_of_entropies_is_their_gradient(max_bytes: int) -> None:
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(2, 2)
    prepared = prepare_step(policy, groups, replace(DAPO, temperature=0.8))
    tokens, weights = asked(prepared)
    result = measure_token_sums(prepared, tokens, weights, np.array([False, True, False]), max_bytes=max_bytes)
    (model, parameters), rows, entropies = plain_model(policy), [], []
    for rollout in rollouts_of(groups):
        logs = plain_logs(model, rollout, 0.8)
        for of_place, token in zip(logs, rollout.completion_ids, strict=True):
            rows.append(flat_gradient(of_place[token], parameters))
            entropies.append(flat_gradient(-(of_place.exp() * of_place).sum(), parameters))
    sums = np.stack(
        [
            [weights[v][mask] @ np.stack(entropies if v == 1 else rows)[mask] for mask in masks]
            for v in range(NUM_WEIGHTINGS)
            for masks in [[tokens.groups == j for j in (0, 1)]]
        ]
    )
    assert relative(result, np.einsum("vjp,wkp->vjwk", sums, sums)) < 2e-5


def test_parameters_without_a_rule_are_added_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(2, 2)
    prepared = prepare_step(policy, groups, DAPO)
    tokens, weights = asked(prepared)
    none = np.zeros(NUM_WEIGHTINGS, dtype=bool)
    expected = measure_token_sums(prepared, tokens, weights, none)
    monkeypatch.setattr(sums_module, "stream_gram", lambda step, *_, **__: frozenset(step.policy.trainable))
    result = measure_token_sums(prepared, tokens, weights, none, max_bytes=1)
    assert relative(result, expected) < 1e-5


def changed(groups: list[RolloutGroup], **fields: Any) -> list[RolloutGroup]:
    """The groups with fields of every rollout, each from a function of the rollout."""
    return [
        replace(
            group,
            rollouts=tuple(
                replace(one, **{name: value(one) for name, value in fields.items()}) for one in group.rollouts
            ),
        )
        for group in groups
    ]


def tokens_of(groups: list[RolloutGroup], **objective: Any) -> CountedTokens | None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, replace(DAPO, **objective))
    return counted_tokens(prepared, measure_step(prepared))


def test_every_token_has_its_place_and_its_weight() -> None:
    groups = tiny_groups(2, 3)
    result = tokens_of(groups)
    rollouts = [one for group in groups for one in group.rollouts]
    assert result is not None
    assert result.lengths == tuple(len(one.completion_ids) for one in rollouts)
    assert result.rollouts.tolist() == [at for at, one in enumerate(rollouts) for _ in one.completion_ids]
    assert result.positions.tolist() == [at for one in rollouts for at in range(len(one.completion_ids))]
    assert set(result.groups[result.rollouts < 3]) == {0}
    expected = [-one.advantage * weight_of(groups) for one in rollouts for _ in one.completion_ids]
    np.testing.assert_allclose(result.weights, expected)
    np.testing.assert_allclose(result.plain, expected)
    assert result.sampler is None
    assert result.reference is None
    assert result.turns.max() == 0
    assert result.num_groups == 2


def test_a_turn_ends_where_a_tool_writes() -> None:
    groups = tiny_groups(1, 2)
    ids = (3, 4, 5, 6, 7, 8, 9)
    masks = {0: (True, True, False, True, False, False, True), 1: (False, True, True, True, True, True, False)}
    groups = changed(groups, completion_ids=lambda one: ids, mask=lambda one: masks[one.sample])
    result = tokens_of(groups)
    assert result is not None
    assert result.turns.tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 0]
    assert result.positions.tolist() == [0, 1, 3, 6, 1, 2, 3, 4, 5]


def test_a_correction_of_the_loss_is_in_its_weights_and_not_in_those_at_ratio_one() -> None:
    groups = changed(tiny_groups(2, 2), logprobs=lambda one: tuple(-1.0 - at for at in range(len(one.completion_ids))))
    cut = SamplerCorrection(mode="token_truncate", low=None, high=1.5)
    result = tokens_of(groups, correction=cut, needs_sampler=True)
    assert result is not None
    assert result.sampler is not None
    np.testing.assert_allclose(result.weights, np.minimum(np.exp(result.logprobs - result.sampler), 1.5) * result.plain)


def test_a_sampler_that_gave_no_number_is_the_policy_there() -> None:
    groups = changed(tiny_groups(1, 2), logprobs=lambda one: (math.nan,) * len(one.completion_ids))
    result = tokens_of(groups)
    assert result is not None
    assert result.sampler is not None
    np.testing.assert_array_equal(result.sampler, result.logprobs)


def test_log_probabilities_of_another_number_of_tokens_are_none() -> None:
    result = tokens_of(changed(tiny_groups(1, 2), logprobs=lambda one: (-1.0,) * (len(one.completion_ids) + 1)))
    assert result is not None
    assert result.sampler is None


def test_the_reference_is_there_with_a_kl_term() -> None:
    policy = tiny_policy("llama_untied_biases", lora=True)
    prepared = prepare_step(policy, tiny_groups(2, 2), replace(DAPO, beta=0.1))
    tokens = counted_tokens(prepared, measure_step(prepared))
    assert tokens is not None
    assert tokens.reference is not None
    assert tokens.reference.shape == tokens.logprobs.shape
    assert not np.allclose(tokens.reference, tokens.logprobs)


def test_a_kl_term_to_the_sampler_has_no_reference() -> None:
    groups = changed(tiny_groups(2, 2), logprobs=lambda one: (-1.0,) * len(one.completion_ids))
    result = tokens_of(groups, beta=0.1, kl_to_sampler=True, kl_type="k2")
    assert result is not None
    assert result.reference is None


@pytest.mark.parametrize("change", ["no advantage", "nothing counts"])
def test_there_is_no_table_without_advantages_or_tokens(change: str) -> None:
    groups = tiny_groups(1, 2)
    if change == "no advantage":
        assert tokens_of(changed(groups, advantage=lambda one: None)) is None
    else:
        cut = changed(groups, status=lambda one: "truncated")
        assert tokens_of(cut, loss_type="grpo", mask_truncated=True) is None


def table(logprobs: list[float], rollouts: list[int], **rest: object) -> CountedTokens:
    count = len(logprobs)
    zeros = np.zeros(count, dtype=np.int64)
    return CountedTokens(
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
            "plain": np.ones(count),
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
    np.testing.assert_allclose(corrected(tokens, np.full(4, -2.0), CORRECTIONS[name]), expected, rtol=1e-12)


def test_a_ratio_beyond_floating_point_is_infinite() -> None:
    tokens = table([0.0], [0])
    assert np.isinf(corrected(tokens, np.array([-1000.0]), CORRECTIONS["token_ratio"])).all()


def test_whole_sequences_have_one_number_each() -> None:
    factors = sequence_factors([np.log([4.0, 0.251]), np.log([6.0]), np.array([1000.0])])
    names = ["none", "sequence_truncate", "sequence_mask", "geometric_mask", "sequence_ratio"]
    assert list(factors) == names
    np.testing.assert_allclose(factors["none"], [1, 1, 1])
    np.testing.assert_allclose(factors["sequence_truncate"], [1.004, 3, 3])
    np.testing.assert_allclose(factors["sequence_mask"], [1.004, 0, 0])
    np.testing.assert_allclose(factors["geometric_mask"], [0, 0, 0])  # 1.004 ^ (1/2) is beyond 1.001
    np.testing.assert_allclose(factors["sequence_ratio"], [1.004, 6, np.inf])
