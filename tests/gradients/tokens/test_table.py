"""What the trainer multiplies each token by."""

from __future__ import annotations

import dataclasses

import numpy as np

from gradscope.gradients.plan.objective import Objective
from tests.gradients.models import (
    DAPO,
    measured_step,
    tiny_groups,
    tiny_policy,
)
from tests.gradients.tokens.test_measure import measured


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
