from __future__ import annotations

import pytest

from gradscope.errors import InputError
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


def test_strict_reading_names_the_most_frequent_reason() -> None:
    with pytest.raises(InputError, match=r"^Rows that cannot be used: 4; first log:4: text\.$") as caught:
        refuse_quarantined(filled().result())
    assert "leave out --strict" in (caught.value.hint or "")


def test_nothing_set_aside_is_no_error() -> None:
    assert QuarantineLog().result().reasons == ()
    refuse_quarantined(QuarantineLog().result())
