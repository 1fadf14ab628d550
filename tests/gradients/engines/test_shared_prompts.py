"""Which rows share a prompt, and what running it once saves."""

from __future__ import annotations

import pytest

from gradscope.gradients.engines import shared_prompts
from gradscope.gradients.engines.shared_prompts import frac_shared, group_by_prompt
from tests.gradients.engines.test_prompt import long_prompts, plan_of
from tests.gradients.models import (
    DAPO,
    measured_step,
    tiny_groups,
    tiny_policy,
)


def test_auto_shares_long_prompts_where_that_saves_enough(monkeypatch):
    policy = tiny_policy("llama_untied_biases")
    assert measured_step(policy, long_prompts(tiny_groups(1, 6), length=24), DAPO).engine == "loop"
    monkeypatch.setattr(shared_prompts, "MIN_PREFIX", 20)
    assert measured_step(policy, long_prompts(tiny_groups(1, 6), length=24), DAPO).engine == "prompt"
    assert measured_step(policy, long_prompts(tiny_groups(1, 1), length=24), DAPO).engine == "loop"


def test_rows_are_grouped_by_the_ids_of_their_prompts():
    plan = plan_of([(5, 6), (7,), (5, 6)], [2, 1, 3])
    first, second = group_by_prompt(plan)
    assert (first.rows, first.prompt_ids, first.prefix_ids) == ((0, 2), (5, 6), (5,))
    assert (second.rows, second.prefix_ids) == ((1,), ())
    # 11 tokens, and the second run of the one-token prefix is saved
    assert frac_shared(plan, weight_gradients=True) == pytest.approx(1 / (3 * 11))
    assert frac_shared(plan, weight_gradients=False) == pytest.approx(1 / (2 * 11))
