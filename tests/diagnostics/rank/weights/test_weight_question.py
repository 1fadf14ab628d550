"""What `--rows weight` asks of a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.weights.weight_question import WeightAnswer, WeightQuestion
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.rollouts.types import RolloutGroup
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


def answer_of(groups: list[RolloutGroup], *advantages: str) -> WeightAnswer:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    gram = measure_step(prepared)
    request = RankRequest(
        rows="weight", advantages=advantages, group_sizes=(2,), paired=False, centered=False, seed=0, output=None
    )
    (answer,) = WeightQuestion(request=request).measure(prepared, gram)
    return answer


def test_the_step_as_the_optimizer_saw_it_and_every_group() -> None:
    groups = tiny_groups()
    answer = answer_of(groups, "logged", "sign")
    prepared = prepare_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    matrices = {name for name, p in prepared.policy.model.named_parameters() if p.ndim == 2}
    assert {spectrum.tensor for spectrum in answer.spectra} == matrices
    energy = sum(float(np.sum(spectrum.singular_values**2)) for spectrum in answer.spectra)
    assert 0 < energy <= measure_step(prepared).policy_gram.sum() * (1 + 1e-5)
    assert {rank.tensor for rank in answer.ranks} == matrices
    assert len(answer.groups) == len(groups)


def test_what_these_rollouts_do_not_have_is_refused_with_its_reason() -> None:
    groups = tiny_groups(1, 3)
    odd = dataclasses.replace(
        groups[0],
        rollouts=tuple(dataclasses.replace(rollout, reward=0.3, advantage=None) for rollout in groups[0].rollouts),
    )
    answer = answer_of([odd], "logged", "sign", "reinforce")
    assert set(answer.refused) == {"logged", "sign"}
    assert answer.spectra == ()
    assert {part.advantage for group in answer.groups for part in group.parts} == {"reinforce"}


@pytest.mark.parametrize("paired", [False, True])
def test_paired_groups_are_those_that_live_at_every_size(paired: bool) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(2, 4), DAPO)
    request = RankRequest(
        rows="weight",
        advantages=("dr_grpo",),
        group_sizes=(2,),
        paired=paired,
        centered=False,
        seed=0,
        output=None,
    )
    gram = measure_step(prepared)
    gram = dataclasses.replace(gram, rewards=np.array([0, 1, 0, 1, 0, 0, 1, 1.0]))
    (answer,) = WeightQuestion(request=request).measure(prepared, gram)
    assert len(answer.groups) == (1 if paired else 2)
