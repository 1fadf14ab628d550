from __future__ import annotations

import math

import pytest

from gradscope.diagnostics.logged.as_logged import first_logged, logged_estimate, mean_as_logged
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
