from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.diagnostics.report.sections.replayed import replay_section
from gradscope.estimate import Estimate
from gradscope.results.norms import Quantity, ReplayVerdict
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
    judged = Estimate.exact(0.0, num_units=1)
    matched = replace(
        REPORT, steps=REPORT.steps[:1], verdict="match", headline="match at 1 of 1 step", frac_replay_mismatch=judged
    )
    section = replay_section(inputs_of(RUN, replay=matched))
    assert len(section.tables) == 1
    assert section.charts == ()
    assert section.findings[0] == "Replay: match at 1 of 1 step."
    assert section.next_step.startswith("Nothing to do")


@pytest.mark.parametrize(
    ("verdict", "cause", "advice"),
    [
        ("mismatch", "the token ids of 4 of 4 completions were inferred from their text", "log exact token ids"),
        ("mismatch", "the recomputed norm is 3% off, with exact ids: other weights", "check that --run-config holds"),
        ("mismatch", "the log says 0.5, its rollouts say 0.75", "look for rows that were changed"),
        ("mismatch", "an advantage differs from grpo of its group by 0.1", "check the formulation"),
        ("cannot", "the loss settings are not in the folder: --run-config", "give the trainer's arguments"),
        ("cannot", "weights are not on disk; pass them with --initial", "give the weights before the first update"),
        ("cannot", "the trainer logged no grad_norm at this step", "log each step"),
        ("cannot", "loss_type bnpo is not known", "Read the cause of the first such step below."),
    ],
)
def test_what_to_do_follows_from_the_causes(verdict: ReplayVerdict, cause: str, advice: str) -> None:
    quantity = Quantity(name="grad_norm", verdict=verdict, cause=cause)
    steps = (replace(REPORT.steps[0], verdict=verdict, cause=cause, quantities=(quantity,)),)
    section = replay_section(inputs_of(RUN, replay=replace(REPORT, steps=steps, verdict=verdict, headline="so")))
    assert section.next_step.startswith(f"{advice[:1].upper()}{advice[1:]}")


def test_some_steps_that_match_still_ask_for_the_weights_of_the_others() -> None:
    report = replace(REPORT, verdict="match", headline="match at 3 of 19 steps; 16 cannot")
    section = replay_section(inputs_of(RUN, replay=report))
    assert section.next_step == "Save a checkpoint before each step that matters."
