from __future__ import annotations

import math

import pytest

from gradscope.diagnostics.report.sections.agreement import agreement_section
from gradscope.diagnostics.report.sections.logged.logged_agreement import logged_agreement
from gradscope.results.report import ReportSection
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Tokens
from tests.diagnostics.logged.made_up_tokens import both, drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of


def section_of(run: Run) -> ReportSection:
    mismatch = inputs_of(run).logged.sampler
    assert mismatch.overall is not None
    section = logged_agreement(mismatch, mismatch.overall)
    assert agreement_section(inputs_of(run)) == section
    return section


def test_the_whole_log_each_step_and_the_worst_tokens() -> None:
    section = section_of(drifting_run())
    assert section.findings[0].startswith("Over 72 tokens of 36 sequences the logged log-probabilities")
    assert "differ by 0.02 a token" in section.findings[0]
    assert "PPO's clip would take the gradient of 0 %" in section.findings[1]
    whole, steps, worst = section.tables
    assert {row[0]: row[1] for row in whole.rows}["sampler and trainer"].value == pytest.approx(0.02)
    assert [row[:2] for row in steps.rows] == [(1, 24), (2, 24), (3, 24)]
    assert all(len(row) == len(table.columns) for table in section.tables for row in table.rows)
    assert worst.rows[0][:3] == (3, 0, 0)
    assert worst.rows[0][5] == pytest.approx(math.exp(0.03))
    assert section.charts[0].series[0].values == pytest.approx((0.01, 0.02, 0.03))


def test_one_step_has_no_course() -> None:
    section = section_of(run_of(tokens_of(both([-1.0], [-1.5]))))
    assert section.charts == ()
    assert len(section.tables) == 2
    assert "PPO" not in section.findings[1]
    assert section.next_step.startswith("Find out which side is off")


def test_long_sequences_that_disagree_though_their_tokens_do_not() -> None:
    run = run_of(tokens_of(*(both([-1.0] * 400, [-1.0 + sign / 110] * 400) for sign in (-1, -1, -1, 1))))
    section = section_of(run)
    assert section.next_step.startswith("Tokens agree and sequences do not")


def test_a_small_mismatch_needs_nothing() -> None:
    assert section_of(run_of(tokens_of(both([-1.0], [-1.001])))).next_step.startswith("Nothing to do")


def test_values_that_were_taken_over_are_no_agreement() -> None:
    section = section_of(run_of(tokens_of(both([-1.0, -2.0], [-1.0, -2.0]))))
    assert "to the last bit at all of 2 tokens" in section.findings[0]
    assert section.next_step.startswith("To compare them")
    assert len(section.tables) == 1


def test_ratios_beyond_floating_point_are_told_as_such() -> None:
    section = section_of(run_of(tokens_of(both([-900.0], [-1.0]))))
    assert len(section.findings) == 2
    assert section.tables[0].rows[5][1].undefined == "a ratio in the log is beyond floating-point numbers"
    assert section.tables[1].rows[0][5] == pytest.approx(math.exp(700))


def test_rows_that_were_set_aside_are_counted() -> None:
    run = run_of(tokens_of(both([-1.0], [-1.5]), both([-1.0], [math.nan])), group_of([1.0, 0.0], step=4))
    assert section_of(run).findings[-1] == (
        "Rows set aside: 1 with a log-probability that is missing, NaN or infinite, "
        "2 with no log-probabilities of the sampler."
    )


def test_a_token_of_one_of_several_sequences_is_found_by_the_sequence_too() -> None:
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,), logprobs=(-1.0,), trainer_logprobs=(-1.0,))
    section = section_of(run_of(tokens_of(both([-1.0], [-1.5], completion_ids=(9,), earlier=(before,)))))
    worst = section.tables[1]
    assert [column.title for column in worst.columns[:4]] == ["step", "row", "sequence", "position"]
    assert worst.rows[0][:4] == (1, 0, 1, 0)
