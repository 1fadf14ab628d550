from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import pytest

from gradscope import measure_spike
from gradscope.diagnostics.spike import measure as module
from gradscope.errors import InputError
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of

QUIET = {step: {"grad_norm": 1.0 + 0.1 * (step % 4), "kl": 0.01 * (1 + step % 3)} for step in range(1, 21)}


def given(monkeypatch: pytest.MonkeyPatch, metrics: Mapping[int, Mapping[str, float]], **more: object) -> Run:
    groups = [group_of([0.0, 1.0, 1.0, 0.0], step=step, advantages=[-1.0, 1.0, 1.0, -1.0]) for step in range(1, 21)]
    run = dataclasses.replace(run_of(*groups, metrics=metrics), **more)
    monkeypatch.setattr(module, "read_run", lambda *_, **__: run)
    return run


def test_the_step_that_stands_out_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, QUIET | {9: {"grad_norm": 30.0, "kl": 0.02}})
    report = measure_spike("run")
    assert (report.step, report.was_named, report.course[9]) == (9, False, 30.0)
    assert [(one.name, one.is_unusual) for one in report.metrics] == [("grad_norm", True), ("kl", False)]
    assert report.findings[0].startswith("Step 9 stands out: grad_norm 30, 25 times the 1.2 of the 19 steps")
    assert "weights after 8 updates" in str(report.grad_norm.undefined)
    assert len(report.rollouts) == 4
    assert (report.removals, report.tokens, report.tensors, report.engine) == ((), (), (), {})


def test_a_step_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, QUIET)
    report = measure_spike("run", step=4)
    assert (report.step, report.was_named) == (4, True)
    assert report.findings[0].startswith("Step 4 does not stand out: grad_norm 1, 0.")


def test_a_step_that_was_logged_as_nan_has_no_place_in_the_course(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, QUIET | {6: {"grad_norm": math.nan}})
    report = measure_spike("run")
    assert (report.step, 6 in report.course) == (6, False)
    assert report.findings[0] == "Step 6 is broken: grad_norm was logged as no finite number."


def test_a_step_without_rollouts_is_told_by_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, QUIET | {30: {"grad_norm": 50.0}})
    report = measure_spike("run")
    assert (report.step, report.rollouts) == (30, ())
    assert report.grad_norm.undefined == "the log has no rollouts of step 30"


def test_a_step_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, QUIET)
    with pytest.raises(InputError, match="has nothing of step 99") as error:
        measure_spike("run", step=99)
    assert error.value.hint == "It has steps 1 to 20."
