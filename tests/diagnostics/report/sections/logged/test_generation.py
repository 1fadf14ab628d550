from __future__ import annotations

import pytest

from gradscope.diagnostics.report.sections.logged.generation import generation_section
from tests.diagnostics.logged.made_up_tokens import drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of


def test_truncation_and_times_are_said_and_drawn() -> None:
    section = generation_section(inputs_of(drifting_run()))
    assert section.findings[0].startswith("50.0 %")
    assert section.findings[1] == (
        "A completion takes 1.5 seconds to generate; the slowest of a step takes 1.3 times its mean."
    )
    assert [chart.series[0].values for chart in section.charts] == [(0.5,) * 3, (1.5,) * 3]
    assert section.next_step.startswith("Raise the length limit")


def test_one_slow_completion_is_waited_for() -> None:
    run = run_of(tokens_of(*({"seconds": seconds} for seconds in (1.0, 1.0, 1.0, 1.0, 30.0))))
    section = generation_section(inputs_of(run))
    assert section.findings[0] == "Truncation is not known: the log does not say which completions were cut off."
    assert section.next_step.startswith("Let generation run ahead")
    assert section.charts == ()


def test_one_timed_completion_waits_for_none() -> None:
    section = generation_section(inputs_of(run_of(tokens_of({"seconds": 2.0}, {}))))
    assert section.findings[1] == "A completion takes 2 seconds to generate."


def test_the_trainers_share_alone() -> None:
    groups = [group_of([1, 0], step=step) for step in (1, 2)]
    metrics = {step: {"completions/clipped_ratio": 0.01} for step in (1, 2)}
    section = generation_section(inputs_of(run_of(*groups, metrics=metrics)))
    assert section.findings == ("1.0 % of completions were cut off at the length limit.",)
    assert section.charts[0].series[0].values == pytest.approx((0.01, 0.01))
    assert section.next_step == "Nothing to do."


def test_a_share_that_is_zero_throughout_has_no_interval_around_it() -> None:
    groups = [group_of([1, 0], step=step) for step in range(1, 12)]
    metrics = {step: {"completions/clipped_ratio": 0.0} for step in range(1, 12)}
    section = generation_section(inputs_of(run_of(*groups, metrics=metrics)))
    assert section.findings == ("No completion was cut off at the length limit.",)


def test_a_log_without_any_says_what_to_log() -> None:
    section = generation_section(inputs_of(run_of(group_of([1, 0]))))
    assert section.missing is not None
    assert section.missing.endswith("and generation_seconds.")
