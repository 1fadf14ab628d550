from __future__ import annotations

import pytest

from gradscope.errors import InputError
from gradscope.results.source import BLANK
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, refuse_quarantined


def filled() -> QuarantineLog:
    log = QuarantineLog()
    for reason, location in (("blank", "log:3"), ("text", "log:4"), ("text", "log:9"), ("absent", "log:5")):
        log.add(reason, location)
    return log


def test_reasons_are_counted_with_their_first_place_the_most_frequent_first() -> None:
    result = filled().result()
    assert result.num_rows == 4
    assert [(reason.reason, reason.num_rows, reason.first) for reason in result.reasons] == [
        ("text", 2, "log:4"),
        ("absent", 1, "log:5"),  # equally frequent: by name
        ("blank", 1, "log:3"),
    ]


def test_a_line_that_holds_many_rollouts_counts_as_many_as_those_that_were_read() -> None:
    log = QuarantineLog()
    lines = log.of_lines()
    for size in (64, 32, 0):  # the last one repeats another
        lines.held(size)
    for reason, location in (("text", "log:4"), ("text", "log:5"), (BLANK, "log:6")):
        lines.add(reason, location)
    log.add("text", "log:7")
    lines.lose(InputError("gone", hint="."))
    result = log.result()
    assert [(one.num_rows, one.num_rollouts, one.counted) for one in result.reasons] == [
        (3, 65, "3 lines of some 65 rollouts"),
        (1, 0, "1 lines of some 0 rollouts"),
    ]
    assert (result.num_rows, result.num_rollouts, result.lost) == (4, 65, ("gone",))
    whole = QuarantineLog()
    whole.include(log, {})
    assert whole.result() == result


def test_lines_of_which_none_was_read_count_as_lines() -> None:
    log = QuarantineLog()
    log.of_lines().add("text", "log:1")
    assert (log.result().num_rollouts, log.result().counted) == (1, "1 rows")


def test_strict_reading_names_the_most_frequent_reason() -> None:
    with pytest.raises(InputError, match=r"^Rows that cannot be used: 4; first log:4: text\.$") as caught:
        refuse_quarantined(filled().result())
    assert "leave out --strict" in (caught.value.hint or "")


def test_nothing_set_aside_is_no_error() -> None:
    assert QuarantineLog().result().reasons == ()
    refuse_quarantined(QuarantineLog().result())
