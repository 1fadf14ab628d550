from __future__ import annotations

import math

import pytest

from gradscope.diagnostics.logged.as_logged import first_logged, logged_estimate, mean_as_logged, metric_courses
from tests.diagnostics.made_up_runs import group_of, run_of


def test_the_first_name_that_any_step_has_counts() -> None:
    metrics = {1: {"b": 0.5}, 2: {"b": 0.25, "c": 1.0}, 9: {"a": 1.0}}
    run = run_of(group_of([1, 0], step=1), group_of([1, 0], step=2), metrics=metrics)
    assert first_logged(run, ("a", "b", "c")) == ("b", {1: 0.5, 2: 0.25})
    assert first_logged(run, ("a",)) is None


def test_a_mean_over_steps_has_an_interval_from_ten_steps_on() -> None:
    assert mean_as_logged({step: step % 2 for step in range(9)}).interval is None
    assert mean_as_logged({step: step % 2 for step in range(20)}).interval is not None


@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (1e308, "1e+308")]
)
def test_what_is_no_number_to_add_has_its_word(value: float, word: str) -> None:
    assert logged_estimate(value).undefined == f"the trainer logged {word}"
    assert mean_as_logged({3: 1.0, 7: value}).undefined == f"the trainer logged {word} at step 7"


def test_courses_are_the_common_metrics_at_the_steps_that_have_them() -> None:
    metrics = {1: {"kl": 0.5, "own": 1.0}, 3: {"kl": 0.25, "reward": 2.0}, 2: {"kl": 1.0}}
    reward, kl = metric_courses(run_of(metrics=metrics))
    assert (reward.name, reward.steps, reward.values, reward.mean.value) == ("reward", (3,), (2.0,), 2.0)
    assert (kl.steps, kl.values) == ((1, 2, 3), (0.5, 1.0, 0.25))
    assert (kl.largest_step, kl.smallest_step, kl.at(2), kl.mean.num_units) == (2, 3, 1.0, 3)
    assert kl.mean.interval is None


def test_a_course_with_a_number_that_is_none_has_no_mean() -> None:
    (broken,) = metric_courses(run_of(metrics={1: {"kl": 0.5}, 2: {"kl": math.nan}, 3: {"kl": 0.25}}))
    assert broken.mean.undefined == "the trainer logged NaN at step 2"
    assert (broken.largest_step, broken.smallest_step) == (1, 3)
    (none,) = metric_courses(run_of(metrics={1: {"kl": math.inf}}))
    assert (none.largest_step, none.mean.undefined) == (1, "the trainer logged Infinity at step 1")
