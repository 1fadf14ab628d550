"""The table of a step's tokens: what counts, turns, weights with and without ratios."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.plan.sampler import SamplerCorrection
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.sums.counted_tokens import CountedTokens, counted_tokens
from gradscope.rollouts.types import RolloutGroup
from tests.gradients.models import DAPO, tiny_groups, tiny_policy, weight_of


def changed(groups: list[RolloutGroup], **fields: Any) -> list[RolloutGroup]:
    """The groups with fields of every rollout, each from a function of the rollout."""
    return [
        dataclasses.replace(
            group,
            rollouts=tuple(
                dataclasses.replace(one, **{name: value(one) for name, value in fields.items()})
                for one in group.rollouts
            ),
        )
        for group in groups
    ]


def tokens_of(groups: list[RolloutGroup], **objective: Any) -> CountedTokens | None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, dataclasses.replace(DAPO, **objective))
    return counted_tokens(prepared, measure_step(prepared))


def test_every_token_has_its_place_and_its_weight() -> None:
    groups = tiny_groups(2, 3)
    found = tokens_of(groups)
    rollouts = [one for group in groups for one in group.rollouts]
    assert found is not None
    assert found.lengths == tuple(len(one.completion_ids) for one in rollouts)
    assert found.rollouts.tolist() == [at for at, one in enumerate(rollouts) for _ in one.completion_ids]
    assert found.positions.tolist() == [at for one in rollouts for at in range(len(one.completion_ids))]
    assert set(found.groups[found.rollouts < 3]) == {0}
    expected = [-one.advantage * weight_of(groups) for one in rollouts for _ in one.completion_ids]
    np.testing.assert_allclose(found.weights, expected)
    np.testing.assert_allclose(found.plain, expected)
    assert found.sampler is None
    assert found.reference is None
    assert found.turns.max() == 0
    assert found.num_groups == 2


def test_a_turn_ends_where_a_tool_writes() -> None:
    groups = tiny_groups(1, 2)
    ids = (3, 4, 5, 6, 7, 8, 9)
    masks = {0: (True, True, False, True, False, False, True), 1: (False, True, True, True, True, True, False)}
    groups = changed(groups, completion_ids=lambda one: ids, mask=lambda one: masks[one.sample])
    found = tokens_of(groups)
    assert found is not None
    assert found.turns.tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 0]
    assert found.positions.tolist() == [0, 1, 3, 6, 1, 2, 3, 4, 5]


def test_a_correction_of_the_loss_is_in_its_weights_and_not_in_those_at_ratio_one() -> None:
    groups = changed(tiny_groups(2, 2), logprobs=lambda one: tuple(-1.0 - at for at in range(len(one.completion_ids))))
    cut = SamplerCorrection(mode="token_truncate", low=None, high=1.5)
    found = tokens_of(groups, correction=cut, needs_sampler=True)
    assert found is not None
    assert found.sampler is not None
    np.testing.assert_allclose(found.weights, np.minimum(np.exp(found.logprobs - found.sampler), 1.5) * found.plain)


def test_a_sampler_that_gave_no_number_is_the_policy_there() -> None:
    groups = changed(tiny_groups(1, 2), logprobs=lambda one: (math.nan,) * len(one.completion_ids))
    found = tokens_of(groups)
    assert found is not None
    assert found.sampler is not None
    np.testing.assert_array_equal(found.sampler, found.logprobs)


def test_log_probabilities_of_another_number_of_tokens_are_none() -> None:
    found = tokens_of(changed(tiny_groups(1, 2), logprobs=lambda one: (-1.0,) * (len(one.completion_ids) + 1)))
    assert found is not None
    assert found.sampler is None


def test_the_reference_is_there_with_a_kl_term() -> None:
    policy = tiny_policy("llama_untied_biases", lora=True)
    prepared = prepare_step(policy, tiny_groups(2, 2), dataclasses.replace(DAPO, beta=0.1))
    found = counted_tokens(prepared, measure_step(prepared))
    assert found is not None
    assert found.reference is not None
    assert found.reference.shape == found.logprobs.shape
    assert not np.allclose(found.reference, found.logprobs)


def test_a_kl_term_to_the_sampler_has_no_reference() -> None:
    groups = changed(tiny_groups(2, 2), logprobs=lambda one: (-1.0,) * len(one.completion_ids))
    found = tokens_of(groups, beta=0.1, kl_to_sampler=True, kl_type="k2")
    assert found is not None
    assert found.reference is None


@pytest.mark.parametrize("change", ["no advantage", "nothing counts"])
def test_there_is_no_table_without_advantages_or_tokens(change: str) -> None:
    groups = tiny_groups(1, 2)
    if change == "no advantage":
        assert tokens_of(changed(groups, advantage=lambda one: None)) is None
    else:
        cut = changed(groups, status=lambda one: "truncated")
        assert tokens_of(cut, loss_type="grpo", mask_truncated=True) is None
