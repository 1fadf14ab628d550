"""The prefix of a group: one forward pass, and what its rows leave on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.errors import UsageError
from gradscope.gradients.engines import prefix, shared_prompts
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_norm import measure_norm
from gradscope.metrics.gram.geometry import batch_norm
from tests.gradients.adapters import adapt
from tests.gradients.engines.test_prompt import long_prompts
from tests.gradients.models import (
    DAPO,
    measured_step,
    policy_of,
    prepared,
    tiny_groups,
    tiny_model,
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


@pytest.mark.parametrize(("token", "is_zero"), [(7, False), (22, True)])
def test_an_adapter_that_waits_for_tokens_shares_no_prompt_and_may_have_no_gradient(token: int, is_zero: bool) -> None:
    """aLoRA acts from its invocation tokens on, which may stand in the prompt; 22 does not occur."""
    model = adapt(
        tiny_model("llama_untied_biases"),
        {"alora_invocation_tokens": [token], "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"},
    )
    assert not prefix.can_share(model)
    groups = [
        replace(
            group, rollouts=tuple(replace(one, prompt_ids=(3, 7, 4), completion_ids=(5, 6)) for one in group.rollouts)
        )
        for group in tiny_groups()
    ]
    step = prepared(policy_of(model, lora=True), groups, DAPO)
    gram = measure_step(step, engine="stream")
    assert batch_norm(gram.logged_gram) == pytest.approx(measure_norm(step).norm, rel=1e-4)  # they almost cancel
    assert (batch_norm(gram.logged_gram) == 0.0) == is_zero
