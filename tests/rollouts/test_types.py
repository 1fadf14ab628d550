from __future__ import annotations

import dataclasses

import pytest

from gradscope.rollouts.types import Rollout, Tokens
from tests.rollouts.build import group


def test_a_group_has_its_rollouts_rewards_and_missing_ones_as_none() -> None:
    made = group(rewards=(1.0, None, 0.0))
    assert (made.rewards, made.size) == ((1.0, None, 0.0), 3)


def test_rollouts_are_not_changed_after_they_are_read() -> None:
    rollout = group().rollouts[0]
    with pytest.raises(dataclasses.FrozenInstanceError, match="reward"):
        rollout.reward = 2.0  # type: ignore[misc]


def test_each_sequence_of_a_rollout_is_a_rollout_of_its_own() -> None:
    before = Tokens(prompt_ids=(5,), completion_ids=(7, 8), mask=(True, False), logprobs=(-1.0, 0.0))
    one = dataclasses.replace(group().rollouts[0], prompt_ids=(5, 7), completion_ids=(9,), mask=(True,), logprobs=None)
    several = dataclasses.replace(one, earlier=(before,))
    first, last = several.sequences
    assert (first.prompt_ids, first.completion_ids, first.mask) == ((5,), (7, 8), (True, False))
    assert first.logprobs == (-1.0, 0.0)
    assert (first.reward, first.earlier, last) == (one.reward, (), one)
    assert (several.num_tokens, one.num_tokens, one.sequences) == (3, 1, (one,))
    assert group().rollouts[0].num_tokens is None


def test_what_a_log_does_not_tell_is_none_or_unknown() -> None:
    bare = Rollout(group_id="g", sample=0, row=0, prompt="", completion="", reward=None)
    unknown = {field.name: getattr(bare, field.name) for field in dataclasses.fields(bare) if field.default is None}
    assert set(unknown.values()) == {None}
    assert {"completion_ids", "logprobs", "mask", "seconds", "policy"} <= unknown.keys()
    assert (bare.status, bare.rewards) == ("unknown", {})
