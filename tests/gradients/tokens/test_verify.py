"""The self-check of token rows catches what is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from gradscope.errors import VerificationError
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.models import (
    DAPO,
    break_rule,
    measured_step,
    tiny_groups,
    tiny_policy,
)


def test_a_wrong_rule_is_caught(monkeypatch):
    def shrunk(honest):
        def wrong(call):
            factors = honest(call)
            weight = factors["weight"]
            return factors | {"weight": dataclasses.replace(weight, left=tuple(0.99 * part for part in weight.left))}

        return wrong

    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    step = measure_step(prepared, engine="loop")
    break_rule(monkeypatch, "linear", shrunk)
    with pytest.raises(VerificationError, match="token rows disagree with one backward pass a token"):
        measure_tokens(prepared, step)


def test_rows_that_do_not_add_up_are_caught():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)
    with pytest.raises(VerificationError, match="token rows disagree with the rollouts' own gradients"):
        measure_tokens(prepare_step(policy, groups, DAPO), dataclasses.replace(step, gram=step.gram * 1.01))
