from __future__ import annotations

import pytest

from gradscope.metrics.outcomes.repeats import repeated_ngrams


@pytest.mark.parametrize(
    ("text", "share"), [("abcd", 0.0), ("aaaaaaaa", 0.8), ("abcdabcdabcd", 5 / 9), ("abcdefghij", 0.0), ("abc", None)]
)
def test_runs_that_stood_there_before_are_counted(text: str, share: float | None) -> None:
    assert repeated_ngrams(text) == (None if share is None else pytest.approx(share))


def test_the_length_of_a_run_may_be_another() -> None:
    assert repeated_ngrams([1, 2, 1, 2], length=2) == pytest.approx(1 / 3)
