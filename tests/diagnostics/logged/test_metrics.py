import math

import pytest

from gradscope.diagnostics.logged import metrics as logged_metrics
from tests.diagnostics.made_up_runs import group_of, run_of


def test_a_logged_metric_has_its_first_name_and_an_interval_from_ten_steps_on() -> None:
    metrics = {1: {"b": 0.5}, 2: {"b": 0.25, "c": 1.0}, 9: {"a": 1.0}}
    run = run_of(group_of([1, 0], step=1), group_of([1, 0], step=2), metrics=metrics)
    assert logged_metrics.first_logged(run, ("a", "b", "c")) == ("b", {1: 0.5, 2: 0.25})
    assert logged_metrics.first_logged(run, ("a",)) is None
    assert logged_metrics.mean_as_logged({step: step % 2 for step in range(9)}).interval is None
    assert logged_metrics.mean_as_logged({step: step % 2 for step in range(20)}).interval is not None


@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (1e308, "1e+308")]
)
def test_what_is_no_number_to_add_has_its_word(value: float, word: str) -> None:
    assert logged_metrics.logged_estimate(value).undefined == f"the trainer logged {word}"
    assert logged_metrics.mean_as_logged({3: 1.0, 7: value}).undefined == f"the trainer logged {word} at step 7"


def test_a_series_has_the_steps_that_logged_it_and_a_mean_of_numbers() -> None:
    metrics = {1: {"kl": 0.5, "own": 1.0}, 3: {"kl": 0.25, "reward": 2.0}, 2: {"kl": 1.0}}
    reward, kl = logged_metrics.metric_series(run_of(metrics=metrics))
    assert (reward.name, *reward.steps, *reward.values, reward.mean.value) == ("reward", 3, 2.0, 2.0)
    assert (list(kl.steps), list(kl.values)) == ([1, 2, 3], [0.5, 1.0, 0.25])
    assert (kl.largest_step, kl.smallest_step, kl.at(2), kl.mean.num_units) == (2, 3, 1.0, 3)
    assert kl.mean.interval is None
    (broken,) = logged_metrics.metric_series(run_of(metrics={1: {"kl": 0.5}, 2: {"kl": math.nan}, 3: {"kl": 0.25}}))
    assert broken.mean.undefined == "the trainer logged NaN at step 2"
    assert (broken.largest_step, broken.smallest_step) == (1, 3)
    (of_verl,) = logged_metrics.metric_series(run_of(group_of([1, 0]), metrics={1: {"actor/entropy": 0.5}}))
    assert (of_verl.name, of_verl.mean.value) == ("entropy", 0.5)
    (infinite,) = logged_metrics.metric_series(run_of(metrics={1: {"kl": math.inf}}))
    assert (infinite.largest_step, infinite.mean.undefined) == (1, "the trainer logged Infinity at step 1")
