"""Sketches of all token rows of a group."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.errors import VerificationError
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens import measure
from gradscope.gradients.tokens import sketched as token_sketch
from gradscope.gradients.tokens.measure import measure_tokens
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy
from tests.gradients.tokens.test_measure import Gained, policy_of


@pytest.mark.parametrize("name", ["gpt2_tied_conv1d", "llama_untied_biases"])
def test_sketched_tokens_are_as_far_from_the_exact_ones_as_stated(name: str) -> None:
    policy, groups = tiny_policy(name), tiny_groups(1, 3)
    if name.startswith("llama"):
        policy.model.model.layers[1].mlp.up_proj.__class__ = Gained  # goes the slow way
        policy = policy_of(policy.model)
    step = measured_step(policy, groups, DAPO)
    (exact,) = measure_tokens(prepare_step(policy, groups, DAPO), step)
    energy = np.trace(exact.gram)
    stated = np.sqrt((1 + np.sum(exact.gram**2) / energy**2) / 256)
    errors = []
    for seed in range(3):
        (found,) = measure_tokens(prepare_step(policy, groups, DAPO), step, num_buckets=256, seed=seed)
        assert found.num_buckets == 256
        assert found.slow_parameters == exact.slow_parameters
        assert found.table.rows == exact.table.rows
        assert found.verification.row_error < found.verification.tolerance
        errors.append(np.linalg.norm(found.gram - exact.gram) / energy)
    assert 0.3 * stated < np.sqrt(np.mean(np.square(errors))) < 2 * stated


def test_a_sketch_of_wrong_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)

    def shrunk(*arguments):
        sketch, slow = token_sketch.sketch_rows(*arguments)
        sketch.rows *= 0.99
        return sketch, slow

    monkeypatch.setattr(measure, "sketch_rows", shrunk)
    with pytest.raises(VerificationError, match="token rows disagree with one backward pass a token"):
        measure_tokens(prepare_step(policy, groups, DAPO), step, num_buckets=64)


def test_a_parameter_that_no_sketch_holds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO)
    monkeypatch.setattr(token_sketch, "lockstep", lambda *_: frozenset(list(policy.trainable)[1:]))
    with pytest.raises(VerificationError, match=r"sketches of token rows miss 1 parameters, among them .*embed"):
        measure_tokens(prepare_step(policy, [dataclasses.replace(groups[0])], DAPO), step, num_buckets=64)
