from __future__ import annotations

import dataclasses

import pytest

from gradscope.diagnostics.spike.question import SpikeQuestion
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.metrics.gram.row_shares import projection_shares
from gradscope.rollouts.types import RolloutGroup
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


def prepared(groups: list[RolloutGroup] | None = None) -> PreparedStep:
    return prepare_step(tiny_policy("llama_untied_biases"), groups or tiny_groups(), DAPO)


def with_advantage(value: float | None) -> list[RolloutGroup]:
    return [
        dataclasses.replace(group, rollouts=tuple(dataclasses.replace(one, advantage=value) for one in group.rollouts))
        for group in tiny_groups()
    ]


@pytest.mark.parametrize("most", [0, 512])
def test_tokens_are_of_the_rollouts_with_the_largest_part(most: int) -> None:
    step = prepared()
    gram = measure_step(step)
    (answer,) = SpikeQuestion(most_tokens=most).measure(step, gram)
    assert [one.tensor for one in answer.tensors] == list(step.policy.trainable)
    assert gram.logged_gram is not None
    shares = projection_shares(gram.logged_gram)
    names = list(zip(gram.group_ids, gram.samples, strict=True))
    largest = names[int(abs(shares).argmax())]
    assert [(one.group_id, one.sample) for one in answer.tokens][:1] == ([largest] if most else [])


@pytest.mark.parametrize("advantage", [0.0, None])
def test_nothing_is_asked_of_a_gradient_that_is_zero_or_not_known(advantage: float | None) -> None:
    step = prepared(with_advantage(advantage))
    assert SpikeQuestion(most_tokens=8).measure(step, measure_step(step)) == ()
