from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.replay.logprobs import logprob_difference
from gradscope.findings.logprobs import logprob_findings
from gradscope.results.replay import StepReplay
from tests.diagnostics.made_up_runs import group_of


def difference_of(logged, recomputed, masks=None):
    group = group_of([1.0] * len(logged))
    rollouts = tuple(
        dataclasses.replace(rollout, logprobs=values, mask=mask)
        for rollout, values, mask in zip(group.rollouts, logged, masks or [None] * len(logged), strict=True)
    )
    own = [np.array(values) for values in recomputed]
    return logprob_difference([dataclasses.replace(group, rollouts=rollouts)], own)


def step_of(difference, step=3):
    return StepReplay(
        step=step,
        weights="w",
        verdict="match",
        cause=None,
        quantities=(),
        logged={},
        recomputed={},
        relative_error={},
        num_inferred_ids=0,
        frac_kl=None,
        logprob_difference=difference,
    )


def test_differences_are_counted_over_tokens():
    found = difference_of([(-1.0, -2.0), (-0.5,)], [(-1.0, -2.4), (-0.7,)])
    assert (found.num_tokens, found.max) == (3, pytest.approx(0.4))
    assert found.mean == pytest.approx(0.2)
    assert found.frac_beyond == pytest.approx(2 / 3)


def test_tokens_that_the_policy_did_not_sample_are_left_out():
    found = difference_of([(-1.0, -9.0)], [(-1.0, -1.0)], masks=[(True, False)])
    assert (found.num_tokens, found.max) == (1, 0.0)


@pytest.mark.parametrize("logged", [[None], [(-1.0, -1.0, -1.0)], [(float("-inf"), -1.0)]])
def test_without_usable_log_probabilities_there_is_none(logged):
    assert difference_of(logged, [(-1.0, -1.0)]) is None


def test_a_sentence_says_whether_these_weights_made_these_rollouts():
    same, other = difference_of([(-1.0,)], [(-1.000001,)]), difference_of([(-1.0, -1.0)], [(-1.0, -2.0)])
    assert logprob_findings([step_of(None)]) == ()
    assert "are those of these weights" in logprob_findings([step_of(same)])[0]
    (sentence,) = logprob_findings([step_of(same), step_of(other, 5)])
    assert "At step 5" in sentence
    assert "at 50.0% of 2 tokens" in sentence
