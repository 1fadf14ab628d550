from __future__ import annotations

import math

import pytest

from gradscope.diagnostics.logged.entropy import METRICS, policy_entropy
from gradscope.metrics.uncertainty.resampling import Resampling
from tests.diagnostics.logged.made_up_tokens import drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of

FEW = Resampling(num_resamples=100)


def test_tokens_have_a_mean_each_step_and_a_trend() -> None:
    found = policy_entropy(drifting_run(), FEW)
    assert found.origin == "tokens"
    assert [row.mean.value for row in found.by_step] == pytest.approx([0.1, 0.2, 0.3])
    assert found.overall is not None
    assert found.overall.mean.value == pytest.approx(0.2)
    assert found.trend is not None
    assert found.trend.value == pytest.approx(0.2)


def test_tokens_not_rollouts_weigh_the_same_and_masked_ones_do_not_count() -> None:
    group = tokens_of(
        {"entropies": (1.0, 9.0, 2.0), "mask": (True, False, True)}, {"entropies": (6.0,)}, {"entropies": (5.0,) * 2}
    )
    found = policy_entropy(run_of(group), FEW)
    assert found.overall is not None
    assert found.overall.mean.value == pytest.approx((1 + 2 + 6 + 5 + 5) / 5)


@pytest.mark.parametrize(
    "entropies", [(math.nan, 1.0), (-3.0,), (1e6,), (math.inf,), ()], ids=["nan", "negative", "large", "inf", "none"]
)
def test_a_rollout_with_numbers_that_are_no_entropy_does_not_count(entropies: tuple[float, ...]) -> None:
    found = policy_entropy(run_of(tokens_of({"entropies": entropies}, {"entropies": (0.5,)})), FEW)
    assert found.overall is not None
    assert found.overall.mean.value == 0.5
    assert policy_entropy(run_of(tokens_of({"entropies": entropies})), FEW).overall is None


def test_a_mask_of_another_length_tells_nothing() -> None:
    assert policy_entropy(run_of(tokens_of({"entropies": (1.0,), "mask": (True, True)})), FEW).overall is None


def test_rounding_below_zero_is_zero() -> None:
    found = policy_entropy(run_of(tokens_of({"entropies": (-1e-6,)})), FEW)
    assert found.overall is not None
    assert found.overall.mean.value == 0.0


@pytest.mark.parametrize("name", METRICS)
def test_the_trainers_own_metric_stands_in(name: str) -> None:
    groups = [group_of([1, 0], step=step) for step in (1, 2, 3, 4)]
    metrics = {1: {name: 0.4}, 3: {name: 0.2}, 4: {"loss": 1.0}, 9: {name: 7.0}}
    found = policy_entropy(run_of(*groups, metrics=metrics), FEW)
    assert found.origin == name
    assert [(row.step, row.mean.value) for row in found.by_step] == [(1, 0.4), (3, 0.2)]
    assert found.overall is not None
    assert found.overall.mean.value == pytest.approx(0.3)


def test_a_logged_nan_is_not_passed_over() -> None:
    groups = [group_of([1, 0], step=step) for step in (1, 2)]
    found = policy_entropy(run_of(*groups, metrics={1: {"entropy": 0.4}, 2: {"entropy": math.nan}}), FEW)
    assert [row.mean.undefined for row in found.by_step] == [None, "the trainer logged NaN"]
    assert found.overall is not None
    assert found.overall.mean.undefined == "the trainer logged NaN at step 2"


def test_a_mean_over_steps_that_fall_stays_an_entropy() -> None:
    groups = [group_of([1, 0], step=step) for step in range(1, 21)]
    metrics = {step: {"entropy": 0.5 - 0.02 * step} for step in range(1, 21)}
    found = policy_entropy(run_of(*groups, metrics=metrics), FEW)
    assert found.overall is not None
    assert found.overall.mean.low == 0.0


def test_no_entropy_is_none() -> None:
    assert policy_entropy(run_of(group_of([1, 0])), FEW).overall is None
