from __future__ import annotations

import math

from gradscope.diagnostics.logged.metric_courses import metric_courses
from tests.diagnostics.made_up_runs import run_of


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
