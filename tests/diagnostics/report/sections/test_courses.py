"""Entropy, staleness and generation as the log has them."""

from __future__ import annotations

import pytest

from gradscope.diagnostics.report.sections.courses import entropy_section, generation_section, staleness_section
from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.findings.rank_parts import entropy_findings
from gradscope.results.report import ReportSection
from tests.diagnostics.logged.made_up_tokens import drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.render.rank_examples import entropy_change


def logged(*values: float) -> ReportSection:
    groups = [group_of([1, 0], step=step) for step in range(1, len(values) + 1)]
    metrics = {step: {"entropy": value} for step, value in enumerate(values, start=1)}
    return entropy_section(inputs_of(run_of(*groups, metrics=metrics)))


def test_entropies_of_tokens_are_said_and_drawn() -> None:
    section = entropy_section(inputs_of(drifting_run()))
    assert section.findings[0] == (
        "Entropy is 0.2 nats a token, 0.1 at step 1 and 0.3 at step 3 (each token has its own)."
    )
    assert section.findings[1].startswith("From step 1 to 3 it changes by +0.2 along its line")
    assert section.charts[0].series[0].values == pytest.approx((0.1, 0.2, 0.3))


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ((0.9, 0.7, 0.5, 0.3), "Watch pass@k beside pass@1"),
        ((0.3, 0.5, 0.7, 0.9), "Read some completions"),
        ((0.3, 0.9, 0.2, 0.8), "Nothing to do while no direction is certain"),
    ],
)
def test_what_to_do_follows_from_the_direction(values: tuple[float, ...], advice: str) -> None:
    section = logged(*values)
    assert "(the trainer's own metric entropy)" in section.findings[0]
    assert section.next_step.startswith(advice)
    assert section.findings[1].endswith("undecided.") == advice.startswith("Nothing")


def test_what_recomputed_steps_do_to_the_entropy_stands_beside_what_was_logged() -> None:
    alone = logged(0.9, 0.7, 0.5, 0.3)
    groups = [group_of([1, 0], step=step) for step in (1, 2)]
    run = run_of(*groups, metrics={1: {"entropy": 0.9}, 2: {"entropy": 0.8}})
    change = entropy_change(2)
    section = entropy_section(inputs_of(run, parts=TokenParts(entropy=(change,))))
    assert alone.tables == ()
    assert section.findings[-1] == entropy_findings([change])[0]
    measured = (change.cosine, change.covariance, change.measured)
    assert section.tables[0].rows == ((2, *measured, change.last, change.logged, change.logged_next),)


def test_a_logged_nan_is_said() -> None:
    section = logged(0.5, float("nan"), 0.25)
    assert section.findings == ("The entropy of the log is not a number: the trainer logged NaN at step 2.",)
    assert section.charts[0].series[0].values == (0.5, None, 0.25)


def test_one_step_has_neither_trend_nor_chart() -> None:
    section = entropy_section(inputs_of(run_of(tokens_of({"entropies": (0.5,)}))))
    assert section.findings == ("Entropy is 0.5 nats a token (each token has its own).",)
    assert section.charts == ()


def test_a_log_without_any_says_what_has_it() -> None:
    section = entropy_section(inputs_of(run_of(group_of([1, 0]))))
    assert section.missing is not None
    assert section.missing.startswith("The log has no entropy.")


def test_lags_are_said_drawn_and_listed() -> None:
    section = staleness_section(inputs_of(drifting_run()))
    assert section.findings[0].startswith("The weights that sampled 36 rollouts were 0.33")
    assert "and 1 at most; 0.0 %" in section.findings[0]
    assert section.charts[0].series[1].values == (0.0, 1.0, 1.0)
    lags = section.tables[0].rows
    assert [row[:2] for row in lags] == [(0, 24), (1, 12)]
    assert lags[1][3].value == pytest.approx(0.025)  # type: ignore[union-attr]
    assert section.next_step.startswith("Where the gap grows with the lag")


def test_a_lag_without_log_probabilities_asks_for_them() -> None:
    section = staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (0, 0)}, step=4))))
    assert section.next_step.startswith("Log the log-probabilities of sampler and trainer as well")
    assert section.tables[0].caption == "Rollouts by lag"
    assert section.tables[0].rows == ((3, 1, 1.0),)
    assert section.charts == ()


def test_no_lag_needs_nothing() -> None:
    section = staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (3, 3)}, step=4))))
    assert section.next_step.startswith("Nothing to do")


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({}, "The log does not say which weights sampled a rollout."),
        ({"policy_versions": (9, 9)}, "The log names weights that are newer than its steps"),
    ],
)
def test_what_the_log_lacks_is_said(fields: dict[str, object], missing: str) -> None:
    section = staleness_section(inputs_of(run_of(tokens_of(fields))))
    assert section.missing is not None
    assert section.missing.startswith(missing)
    assert staleness_section(inputs_of(run_of(group_of([1, 0])))).missing is not None


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
