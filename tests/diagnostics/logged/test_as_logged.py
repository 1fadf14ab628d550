from __future__ import annotations

import math

import pytest

from gradscope.diagnostics.logged.as_logged import logged_estimate, mean_as_logged


def test_a_mean_over_steps_has_an_interval_from_ten_steps_on() -> None:
    assert mean_as_logged({step: step % 2 for step in range(9)}).interval is None
    assert mean_as_logged({step: step % 2 for step in range(20)}).interval is not None


@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (1e308, "1e+308")]
)
def test_what_is_no_number_to_add_has_its_word(value: float, word: str) -> None:
    assert logged_estimate(value).undefined == f"the trainer logged {word}"
    assert mean_as_logged({3: 1.0, 7: value}).undefined == f"the trainer logged {word} at step 7"
