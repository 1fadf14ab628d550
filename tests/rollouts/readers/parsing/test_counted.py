from __future__ import annotations

import pytest

from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted, hidden_by


@pytest.mark.parametrize(("number", "words"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1000, "1000 steps")])
def test_only_one_is_singular(number: int, words: str) -> None:
    assert counted(number, "step") == words


def test_sentences_for_a_source_are_whole_sentences() -> None:
    assert hidden_by("A filter was on").endswith("; the share of dead groups in this log is then a lower bound.")
    assert TEXT_ONLY.endswith(".")
