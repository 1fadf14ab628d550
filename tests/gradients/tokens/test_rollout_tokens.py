"""Tokens of whole rollouts: their rows add up to the rollout, their entropy is the definition's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.rollout_tokens import measure_rollout_tokens
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy


@pytest.fixture(scope="module")
def step():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(2, 3)
    return policy, groups, measured_step(policy, groups, DAPO)


def test_shares_add_up_and_a_lone_token_has_its_rollouts_norm(step):
    policy, groups, gram = step
    found = measure_rollout_tokens(prepare_step(policy, groups, DAPO), gram, [4, 0], most=512)
    assert [(one.group_id, one.sample) for one in found] == [
        (gram.group_ids[index], gram.samples[index]) for index in (4, 0)
    ]
    for index, one in zip((4, 0), found, strict=True):
        assert one.shares is not None
        assert one.shares.sum() == pytest.approx(1.0)
        assert one.is_seen.all()
        assert one.norms.sum() >= np.sqrt(gram.policy_gram[index, index]) * (1 - 1e-6)
        assert set(np.sign(one.weights)) == {-np.sign(gram.advantages[index])}


def test_entropy_is_that_of_the_plain_softmax(step):
    policy, groups, gram = step
    (found,) = measure_rollout_tokens(prepare_step(policy, groups, DAPO), gram, [0])
    rollout = groups[0].rollouts[0]
    with torch.no_grad():
        logits = policy.model(torch.tensor([rollout.prompt_ids + rollout.completion_ids])).logits[0].double()
    p = torch.softmax(logits[len(rollout.prompt_ids) - 1 : -1] / DAPO.temperature, dim=1)
    assert found.entropies == pytest.approx(-(p * p.log()).sum(dim=1).numpy(), abs=1e-5)


def test_rollouts_are_left_out_from_the_end_and_a_long_first_one_is_drawn_from(step):
    policy, groups, gram = step
    lengths = [len(rollout.completion_ids) for group in groups for rollout in group.rollouts]
    found = measure_rollout_tokens(prepare_step(policy, groups, DAPO), gram, [0, 1, 2], most=sum(lengths[:2]))
    assert len(found) == 2
    longest = int(np.argmax(lengths))
    (drawn,) = measure_rollout_tokens(prepare_step(policy, groups, DAPO), gram, [longest, 0], most=2)
    assert drawn.is_seen.sum() == 2
    assert drawn.shares is None
    assert (drawn.norms > 0).tolist() == drawn.is_seen.tolist()


def test_a_token_is_its_text_or_its_id(step):
    policy, groups, gram = step
    first = groups[0].rollouts[0].completion_ids[0]
    (found,) = measure_rollout_tokens(prepare_step(policy, groups, DAPO), gram, [0])
    assert found.texts[0] == f"[{first}]"
    spoken = SimpleNamespace(decode=lambda ids: f"<{ids[0]}>", eos_token_id=None)
    object.__setattr__(policy, "tokenizer", spoken)
    (found,) = measure_rollout_tokens(prepare_step(policy, groups, DAPO), gram, [0])
    object.__setattr__(policy, "tokenizer", None)
    assert found.texts[0] == f"<{first}>"
