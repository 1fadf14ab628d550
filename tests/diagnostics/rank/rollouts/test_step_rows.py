"""The engine's answer in plain arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradscope.diagnostics.rank.rollouts.step_rows import step_rows
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy


def test_the_blocks_are_those_of_the_step() -> None:
    groups = tiny_groups(2, 2)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    gram = measured_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    rows = step_rows(gram)
    advantages = np.array([rollout.advantage for rollout in rollouts])
    np.testing.assert_array_equal(rows.gram, gram.score_gram)
    np.testing.assert_allclose(rows.policy_gram, advantages[:, None] * rows.gram * advantages, rtol=1e-9)
    np.testing.assert_allclose(rows.full_gram, rows.policy_gram)  # no KL term
    assert rows.group_ids == ("g0", "g0", "g1", "g1")
    assert rows.samples == (0, 1, 0, 1)
    assert rows.rewards.tolist() == [rollout.reward for rollout in rollouts]
    assert rows.lengths.tolist() == [len(rollout.completion_ids) for rollout in rollouts]
    assert (rows.step, rows.num_parameters) == (1, gram.num_parameters)


def test_a_rollout_is_live_where_its_gradient_is_not_zero() -> None:
    groups = tiny_groups(1, 3)
    first, *others = groups[0].rollouts
    dead = [replace(groups[0], rollouts=(replace(first, advantage=0.0), *others))]
    rows = step_rows(measured_step(tiny_policy("llama_untied_biases"), dead, DAPO))
    assert rows.is_live.tolist() == [False, True, True]
    assert replace(rows, policy_gram=None).is_live is None
