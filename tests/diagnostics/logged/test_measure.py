from __future__ import annotations

import dataclasses

import pytest

from gradscope.diagnostics.logged.measure import PARTS, _logged_policy, absence_of
from gradscope.results.envelope import to_jsonable
from gradscope.results.logged import LoggedPolicy, SamplerMismatch, Staleness
from tests.diagnostics.logged.made_up_tokens import drifting_run
from tests.diagnostics.made_up_runs import group_of, run_of


def test_every_part_of_a_log_that_has_them_all() -> None:
    found = _logged_policy(drifting_run())
    assert {field.name for field in dataclasses.fields(LoggedPolicy)} == {*PARTS, "missing"}
    assert found.missing == {}
    for name in PARTS:
        part = getattr(found, name)
        assert part.overall.step is None
        assert [row.step for row in part.by_step] == [1, 2, 3]
    assert to_jsonable(found)["sampler"]["by_step"][0]["step"] == 1


@pytest.mark.parametrize("name", sorted(PARTS))
def test_what_a_log_lacks_is_said_with_what_has_it(name: str) -> None:
    found = _logged_policy(run_of(group_of([1, 0])))
    part = getattr(found, name)
    assert part.overall is None
    reason, hint = absence_of(name, part)
    assert found.missing[name] == reason
    assert reason.startswith("the log ")
    assert not reason.endswith(".")
    assert hint.endswith(".")


def test_the_commonest_reason_is_named() -> None:
    reason, _ = absence_of("sampler", SamplerMismatch(set_aside={"one reason": 2, "another": 1200}))
    assert reason.endswith("(1,200 rows: another)")


def test_a_contradiction_is_the_reason() -> None:
    reason, hint = absence_of("staleness", Staleness(contradiction="steps are odd"))
    assert reason == "steps are odd"
    assert hint == "Count steps from 1, and versions in updates."
