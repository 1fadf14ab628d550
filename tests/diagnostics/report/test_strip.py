"""The five numbers: those of the sections, or the reason why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples
from gradscope.diagnostics.passk.samples import samples_of_run
from gradscope.diagnostics.report.strip import key_numbers
from gradscope.estimate import Estimate
from gradscope.results.logged import LoggedPolicy, SamplerMismatch
from gradscope.results.report import KeyNumber
from tests.diagnostics.made_up_runs import group_of, run_of, samples_run
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.render.examples import replay_report
from tests.render.report_example import run_report

RUN = run_of(
    *(
        group_of(rewards, step=step, prompt=f"{step}{n}")
        for step in (1, 2)
        for n, rewards in enumerate(([1, 0], [0, 0]))
    )
)
NAMES = ["signal", "rank", "replay", "agreement"]


def numbers(**parts: Any) -> list[KeyNumber]:
    return list(key_numbers(inputs_of(RUN, **parts)))


def test_without_anything_each_says_why() -> None:
    found = numbers()
    assert [number.name for number in found] == [*NAMES, "coverage"]
    assert [bool(number.value.undefined) for number in found] == [True] * 5
    assert [number.course for number in found] == [()] * 5


def test_dead_groups_and_passes_of_the_training_groups() -> None:
    dead, *_, reach = numbers(degeneracy=degeneracy_of_run(RUN))
    assert (dead.value.value, dead.note, dead.places, dead.course) == (0.5, "of 4 groups", (1, 2), (0.5, 0.5))
    assert reach.then is not None
    assert (reach.value.value, reach.then.value) == (0.25, 0.5)
    assert (reach.title, reach.note) == ("pass rate → groups with a pass", "of 4 training groups of 2")


def test_held_out_samples_come_before_the_training_groups() -> None:
    samples = samples_of_run(samples_run({"a": [1, 0, 0, 0], "b": [0, 0, 0, 0]}), name="after")
    *_, reach = numbers(passk=pass_at_k_of_samples([samples]), degeneracy=degeneracy_of_run(RUN))
    assert reach.then is not None
    assert (reach.value.value, reach.then.value, reach.name) == (0.125, 0.5, "coverage")
    assert reach.note == "k = 1 and 4, after"


def test_the_error_of_the_norm_is_the_largest_that_was_recomputed() -> None:
    report = replay_report()
    *_, norm, _, _ = numbers(replay=report)
    errors = [step.relative_error["grad_norm"] for step in report.steps if "grad_norm" in step.relative_error]
    assert norm.value.value == max(errors)
    assert (
        norm.note
        == f"{sum(error <= report.tolerance for error in errors)} of {len(errors)} norms match; course: as logged"
    )
    assert norm.course == tuple(step.logged.get("grad_norm") for step in report.steps)
    bare = tuple(replace(step, relative_error={}, logged={}) for step in report.steps)
    *_, norm, _, _ = numbers(replay=replace(report, steps=bare))
    assert (norm.value.undefined, norm.note, norm.course) == ("no norm was recomputed", "", ())


def test_the_mismatch_is_that_of_the_log() -> None:
    sampler = run_report().logged.sampler
    *_, mismatch, _ = numbers(logged=LoggedPolicy(sampler=sampler))
    assert mismatch.value.value == 0.5
    *_, mismatch, _ = numbers(logged=LoggedPolicy(sampler=SamplerMismatch()))
    assert mismatch.value == Estimate.undefined_because("the log does not hold the log-probabilities of both")
