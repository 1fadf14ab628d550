from __future__ import annotations

import pytest

from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.diagnostics.report.sections.logged.entropy import entropy_section
from gradscope.findings.rank.token_parts import entropy_findings
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
