from typing import get_args

import pytest

from gradscope.reason import CAUSES, Reason, Verdict


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_says_what_to_do(cause: str) -> None:
    reason = Reason(cause, "what was found")
    assert str(reason) == "what was found"
    assert reason.verdict in get_args(Verdict)
    assert reason.advice.endswith(".")


def test_a_case_may_tell_more_than_its_row() -> None:
    assert Reason("weights_missing", "none", "Pass --initial base.").advice == "Pass --initial base."
