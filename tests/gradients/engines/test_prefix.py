"""The prefix of a group: one forward pass, and what its rows leave on it."""

from __future__ import annotations

import pytest

from gradscope.errors import UsageError
from gradscope.gradients.engines import prefix, shared_prompts
from tests.gradients.engines.test_prompt import long_prompts
from tests.gradients.models import (
    DAPO,
    measured_step,
    tiny_groups,
    tiny_policy,
)


def test_a_model_without_keys_and_values_of_all_tokens_is_refused(monkeypatch):
    class Forgetful(prefix.DynamicCache):
        def update(self, keys, values, layer, *rest, **named):
            super().update(keys[:, :, -3:], values[:, :, -3:], layer)
            return keys, values

    monkeypatch.setattr(prefix, "DynamicCache", Forgetful)
    with pytest.raises(UsageError, match="keeps the keys and values of all tokens") as caught:
        measured_step(
            tiny_policy("llama_untied_biases"), long_prompts(tiny_groups(1)), DAPO, engine="prompt", verify="all"
        )
    assert "--engine stream" in caught.value.hint


def test_auto_shares_no_prompt_of_a_model_that_keeps_another_kind_of_past(monkeypatch):
    monkeypatch.setattr(shared_prompts, "MIN_PREFIX", 20)
    policy, groups = tiny_policy("llama_untied_biases"), long_prompts(tiny_groups(1, 6), length=24)
    policy.model.config.layer_types = ["full_attention", "linear_attention"]
    assert measured_step(policy, groups, DAPO).engine == "loop"
    with pytest.raises(UsageError, match="keeps the keys and values of all tokens"):
        measured_step(policy, groups, DAPO, engine="prompt")
