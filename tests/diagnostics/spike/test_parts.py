from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.spike.parts import MOST_TOKENS, removals_of, rollouts_of, tensors_of, tokens_of
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import TensorNorm
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import measure_rollout_tokens
from tests.diagnostics.made_up_runs import group_of
from tests.gradients.models import DAPO, tiny_groups, tiny_policy


@pytest.fixture(scope="module")
def gram() -> StepGram:
    return measure_step(prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO))


def test_rollouts_come_by_their_part_of_the_gradient(gram: StepGram) -> None:
    found = rollouts_of(tiny_groups(), gram, "no reason")
    matrix = gram.logged_gram
    assert matrix is not None
    names = list(zip(gram.group_ids, gram.samples, strict=True))
    shares = dict(zip(names, matrix.sum(axis=1) / matrix.sum(), strict=True))
    assert len(found) == len(names)
    assert sum(one.projection_share.value or 0 for one in found) == pytest.approx(1.0)
    sizes = [abs(one.projection_share.value or 0) for one in found]
    assert sizes == sorted(sizes, reverse=True)
    for one in found:
        assert one.projection_share.value == pytest.approx(shares[one.group_id, one.sample])
        kept = [at for at, name in enumerate(names) if name != (one.group_id, one.sample)]
        assert one.norm_without.value == pytest.approx(np.sqrt(matrix[np.ix_(kept, kept)].sum()), rel=1e-6)


def test_without_gradients_those_that_repeat_most_come_first() -> None:
    (group,) = [group_of([0.0, 1.0, 0.0])]
    texts = ("one two three four five", "no no no no no no no", "short")
    rollouts = tuple(dataclasses.replace(one, completion=text) for one, text in zip(group.rollouts, texts, strict=True))
    found = rollouts_of([dataclasses.replace(group, rollouts=rollouts)], None, "the weights are gone")
    assert [one.sample for one in found] == [1, 0, 2]
    assert found[0].repeated_ngrams.value == pytest.approx(0.75)
    assert found[2].repeated_ngrams.undefined == "the completion is shorter than 4"
    assert found[0].projection_share.undefined == found[0].norm_without.undefined == "the weights are gone"


def test_rollouts_go_until_the_norm_is_that_of_the_steps_around(gram: StepGram) -> None:
    every = removals_of(gram, None)
    assert [one.num_removed for one in every] == list(range(1, 1 + len(every)))
    assert len(every) == 2  # a quarter of six, rounded up
    assert every[0].grad_norm > every[1].grad_norm
    assert removals_of(gram, every[0].grad_norm) == every[:1]
    assert removals_of(gram, 0.0) == every


def test_a_gradient_of_zero_has_no_parts(gram: StepGram) -> None:
    zero = dataclasses.replace(gram, gram=np.zeros_like(gram.gram))
    assert removals_of(zero, 1.0) == removals_of(None, 1.0) == ()
    assert {one.projection_share.undefined for one in rollouts_of(tiny_groups(), zero, "it is zero")} == {"it is zero"}


def test_tokens_come_by_the_norm_of_their_gradient(gram: StepGram) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    measured = measure_rollout_tokens(prepared, gram, range(6))
    found = tokens_of(measured)
    norms = sorted((norm for one in measured for norm in one.norms[one.is_seen].tolist()), reverse=True)
    assert [one.norm for one in found] == norms[:MOST_TOKENS]
    first = found[0]
    (of_rollout,) = [one for one in measured if (one.group_id, one.sample) == (first.group_id, first.sample)]
    assert (first.text, first.weight) == (of_rollout.texts[first.position], of_rollout.weights[first.position])


def test_parameters_come_by_their_part_of_the_squared_norm() -> None:
    norms = [
        TensorNorm(tensor=name, num_entries=count, norm=norm) for name, count, norm in [("a", 30, 3.0), ("b", 10, 4.0)]
    ]
    found = tensors_of(norms)
    assert [(one.tensor, one.tensor_share, one.frac_parameters) for one in found] == [
        ("b", pytest.approx(0.64), 0.25),
        ("a", pytest.approx(0.36), 0.75),
    ]
    assert tensors_of([TensorNorm(tensor="a", num_entries=1, norm=0.0)]) == ()
