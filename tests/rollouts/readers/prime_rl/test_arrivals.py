from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gradscope.rollouts.readers.parsing.counted import SEVERAL
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.annotations import Annotations
from gradscope.rollouts.readers.prime_rl.arrivals import Arrival, arrivals, is_evaluation, is_rounded
from gradscope.rollouts.readers.prime_rl.episode import AGENTS
from tests.rollouts.readers.prime_rl.test_columns import row, trace


def arrive(cells: dict[str, Any], **info: Any) -> tuple[list[Arrival], Counter[str], tuple[str, ...]]:
    quarantine, seen = QuarantineLog(), Counter[str]()
    found = list(arrivals([("f:1", cells)], Annotations({"t": info}), quarantine, seen))
    return found, seen, tuple(reason.reason for reason in quarantine.result().reasons)


def test_a_rollout_arrives_at_the_step_of_its_dispatch_with_what_was_learned_of_it() -> None:
    (found,), seen, _ = arrive(row(3), ship={"step": 5}, advantage=0.5)
    assert (found.record.step, found.trained_at) == (3, 5)
    assert (found.record.sample_id, found.record.location, found.record.advantage) == ("t", "f:1", 0.5)
    assert (seen[AGENTS], seen[SEVERAL]) == (0, 0)


def test_a_dispatch_counts_where_the_work_names_no_step() -> None:
    (found,), _, _ = arrive(row(run={"work": {"step": True}}), dispatch={"step": 4})
    assert (found.record.step, found.trained_at) == (4, None)


@pytest.mark.parametrize("step", [1.0, "1", None, 1 << 60, 10**400])
def test_a_step_that_is_none_is_set_aside(step: Any) -> None:
    assert arrive(row(step)) == ([], {AGENTS: 0}, ("the step is not a whole number",))


def test_each_agent_arrives_and_an_evaluation_does_not() -> None:
    found, seen, _ = arrive(row(1, "g", trace("t"), trace("u")))
    assert ([one.record.group for one in found], seen[AGENTS]) == (["g/0", "g/1"], 1)
    evaluation = row(1, "g", trace("t", info={"kind": "eval"}))
    assert is_evaluation(evaluation)
    assert not is_evaluation(row())
    assert arrive(evaluation) == ([], {}, ())


@pytest.mark.parametrize(("logprobs", "rounded"), [([-0.1234], True), ([-0.12345], False), ([], None)])
def test_log_probabilities_are_rounded_where_none_has_more_than_four_decimals(
    logprobs: list[float], rounded: Any
) -> None:
    cells = trace("t")
    cells["nodes"][1] |= {"logprobs": logprobs}
    (found,), _, _ = arrive(row(1, "g", cells))
    assert is_rounded(found.record) is rounded
