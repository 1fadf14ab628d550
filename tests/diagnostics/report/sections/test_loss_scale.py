from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.diagnostics.report.sections.loss_scale import loss_scale_section
from gradscope.findings.rank.token_parts import kl_findings
from gradscope.results.report import ReportSection
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup, Tokens
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of
from tests.render.examples import degeneracy_report
from tests.render.rank_examples import kl


def with_tokens(group: RolloutGroup, length: int) -> RolloutGroup:
    return replace(group, rollouts=tuple(replace(r, completion_ids=(1,) * length) for r in group.rollouts))


DEAD, LIVE = with_tokens(group_of([1, 1], step=1, prompt="dead"), 30), with_tokens(group_of([1, 0], step=1), 10)
ALIVE = with_tokens(group_of([0, 1], step=2), 10)


def section_of(run: Run, **parts: object) -> ReportSection:
    return loss_scale_section(inputs_of(run, degeneracy=degeneracy_report(), **parts))


@pytest.mark.parametrize(("loss_type", "unit", "live"), [("grpo", "rollouts", 0.5), ("dapo", "tokens", 0.25)])
def test_the_live_share_is_of_what_the_loss_averages_over(loss_type: str, unit: str, live: float) -> None:
    section = section_of(run_of(DEAD, LIVE, ALIVE, settings={"loss_type": loss_type, "beta": 0}))
    assert section.tables[0].rows == ((1, live), (2, 1.0))
    assert section.charts[0].series[0].values == (live, 1.0)
    mean = (live + 1) / 2
    assert section.findings[0] == (
        f"On average {100 * mean:.1f} % of the {unit} that the loss averages over are live, so a live gradient is "
        f"multiplied by {mean:.2f}."
    )


def test_without_token_ids_rollouts_are_counted() -> None:
    section = section_of(run_of(group_of([1, 1], prompt="a"), group_of([1, 0]), settings={"loss_type": "dapo"}))
    assert "of the rollouts that the loss averages over" in section.findings[0]
    assert section.charts == ()


def test_the_kl_part_is_that_of_the_step_with_most() -> None:
    grams = [gram_of([[1.0]], ["a"], step=step, frac_kl=part) for step, part in ((1, 0.1), (2, 0.4))]
    section = section_of(run_of(LIVE, ALIVE, metrics={1: {"kl": 0.5}}), grams=grams)
    assert section.findings[1] == (
        "The KL part has 40.0 % of the gradient's norm at step 2, the most of the 2 steps recomputed."
    )
    assert section.tables[0].rows == ((1, 1.0, 0.1, 0.5), (2, 1.0, 0.4, None))


@pytest.mark.parametrize(
    ("settings", "metrics", "sentence"),
    [
        ({"beta": 0}, {}, "The loss has no KL term (beta = 0)."),
        ({}, {}, "The loss has no KL term (beta = 0)."),
        ({"beta": 0.1}, {1: {"kl": 0.5}}, "The trainer logged a KL term; how much of the gradient it makes needs"),
        (None, {}, "Whether the loss has a KL term is not in the log"),
    ],
)
def test_without_gradients_the_kl_part_is_what_settings_and_log_say(
    settings: dict[str, object] | None, metrics: dict[int, dict[str, float]], sentence: str
) -> None:
    assert section_of(run_of(LIVE, settings=settings, metrics=metrics)).findings[1].startswith(sentence)


def test_what_to_do_follows_from_dead_groups_and_the_kl_part() -> None:
    assert section_of(run_of(LIVE, ALIVE)).next_step.startswith("Nothing to do: every group is live")
    dead = section_of(run_of(DEAD, LIVE, ALIVE)).next_step
    assert dead.startswith("Dead groups act like a learning rate scaled by 0.50 to 1.00 from step to step")
    assert "beta" not in dead
    held = section_of(run_of(LIVE, ALIVE), grams=[gram_of([[1.0]], ["a"], step=1, frac_kl=0.9)]).next_step
    assert held == "The KL part nears the whole gradient and holds the policy where it is: lower beta."


def test_the_tokens_of_all_sequences_of_a_rollout_count() -> None:
    before = Tokens(prompt_ids=(5,), completion_ids=(7,) * 20, mask=(True,) * 20)
    several = replace(LIVE, rollouts=tuple(replace(one, earlier=(before,)) for one in LIVE.rollouts))
    section = section_of(run_of(DEAD, several, settings={"loss_type": "dapo", "beta": 0}))
    assert section.tables[0].rows == ((1, 0.5),)


def test_the_tokens_furthest_from_the_reference_are_listed_for_the_last_step() -> None:
    blank = dataclasses.replace(kl(6), top=(dataclasses.replace(kl(6).top[0], text="\n"),))
    section = section_of(run_of(LIVE, ALIVE), parts=TokenParts(kl=(kl(1), blank)))
    assert section.findings[-1] == kl_findings([blank])[0]
    table, token = section.tables[-1], blank.top[0]
    assert table.caption.startswith("The 1 tokens of step 6 ")
    assert table.rows == ((f"{token.group_id} #3", 12, repr("\n"), -12.25, -0.5, -11.75, 126_742.0),)
