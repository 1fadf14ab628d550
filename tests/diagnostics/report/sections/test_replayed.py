from __future__ import annotations

from dataclasses import replace

from gradscope.diagnostics.report.sections.replayed import replay_section
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.render.examples import replay_report

REPORT = replay_report()
RUN = run_of(group_of([1, 0]))


def test_each_step_has_its_verdicts_and_both_norms() -> None:
    steps, causes = replay_section(inputs_of(RUN, replay=REPORT)).tables
    assert [column.title for column in steps.columns][-3:] == ["logged grad_norm", "recomputed", "error"]
    assert steps.rows[0] == (1, None, None, "match", "match", 0.52, 0.52, 3e-7)
    assert steps.rows[1] == (2, None, None, "match", "cannot", 0.54, None, None)
    assert steps.caption == "Verdicts by step; grad_norm matches within a relative error of 1e-05"
    assert causes.rows == (
        (2, 16, "grad_norm", "cannot", "the weights before step 2 are not on disk"),
        (11, 1, "grad_norm", "mismatch", "the token ids were inferred from text"),
    )


def test_both_norms_are_drawn_over_the_steps() -> None:
    (chart,) = replay_section(inputs_of(RUN, replay=REPORT)).charts
    logged, recomputed = chart.series
    assert logged.values[:2] == (0.52, 0.54)
    assert recomputed.values[:2] == (0.52, None)


def test_a_match_throughout_has_no_causes_and_no_curve_of_one_step() -> None:
    matched = replace(REPORT, steps=REPORT.steps[:1], verdict="match")
    section = replay_section(inputs_of(RUN, replay=matched))
    assert len(section.tables) == 1
    assert section.charts == ()
    assert section.findings[-1] == "The verdict on the run: match."
    assert section.next_step.startswith("Nothing to do")
