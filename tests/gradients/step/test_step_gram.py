from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from gradscope.errors import InputError
from tests.gradients.models import DAPO, measured_step, policy_of, tiny_groups, tiny_model, tiny_policy


@pytest.fixture(scope="module")
def found():
    return measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)


def test_any_advantage_is_a_product_of_small_matrices(found):
    advantages = np.array([1.0, -1.0, 0.0, 2.0, 0.5, -0.5])
    expected = np.diag(advantages) @ found.score_gram @ np.diag(advantages)
    np.testing.assert_allclose(found.gradient_gram(advantages), expected)
    np.testing.assert_allclose(found.gradient_gram(list(advantages)), expected)
    np.testing.assert_allclose(found.logged_gram, found.gradient_gram(found.advantages))
    np.testing.assert_allclose(found.policy_gram, found.logged_gram)
    assert not found.gradient_gram(np.zeros(6)).any()


def test_the_kl_part_is_in_every_gradient_and_not_in_the_policy_part():
    model, reference = tiny_model("gpt2_tied_conv1d"), tiny_model("gpt2_tied_conv1d")
    reference.lm_head.weight.data.mul_(0.5)
    step = measured_step(policy_of(model, reference=reference), tiny_groups(1, 3), dataclasses.replace(DAPO, beta=0.1))
    np.testing.assert_allclose(step.gradient_gram(np.zeros(3)), step.kl_gram)
    np.testing.assert_allclose(step.policy_gram, np.diag(step.advantages) @ step.score_gram @ np.diag(step.advantages))
    whole = np.sqrt(step.logged_gram.sum())
    assert step.frac_kl == pytest.approx(np.sqrt(step.kl_gram.sum()) / whole)


def test_without_logged_advantages_there_is_no_logged_gradient(found):
    groups = tiny_groups(1, 2)
    bare = tuple(dataclasses.replace(r, advantage=None, reward=None) for r in groups[0].rollouts)
    step = measured_step(tiny_policy("llama_untied_biases"), [dataclasses.replace(groups[0], rollouts=bare)], DAPO)
    assert step.logged_gram is None
    assert step.policy_gram is None
    assert step.frac_kl is None
    assert step.advantages is None
    assert np.isnan(step.rewards).all()
    with pytest.raises(InputError, match="not every rollout has a logged advantage"):
        step.gradient_gram("logged")


def test_as_many_advantages_as_rollouts(found):
    with pytest.raises(ValueError, match=r"expected 6 advantages, got an array of shape \(2,\)"):
        found.gradient_gram([1.0, 2.0])


def test_the_description_is_plain_json(found):
    described = json.loads(json.dumps(found.describe(), allow_nan=False))
    assert described["engine"] == "loop"
    assert described["coverage"] == 1.0
    assert described["verification"]["passed"] is True
    assert found.frac_kl is None
