"""Questions about the loss: is zero healthy, and what is it made of."""

import math

import pytest
from msgspec.structs import replace

from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.diagnostics.report.sections.loss import loss_scale_section, zero_loss_section
from gradscope.findings.rank_parts import kl_findings
from gradscope.results.report import ReportSection
from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, norms_with, run_of, with_fields
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of
from tests.render.examples import degeneracy_report
from tests.render.rank_examples import kl

DIFFERENT, EQUAL = [1, 0], [1, 1]


@pytest.mark.parametrize(
    ("rewards", "metrics", "kind"),
    [
        (DIFFERENT, {"grad_norm": 0.5, "loss": 0.1}, "learning"),
        (DIFFERENT, {"grad_norm": 0.5, "loss": 1e-7}, "on-policy"),
        (DIFFERENT, {"grad_norm": 0.5}, "learning"),
        (DIFFERENT, {"grad_norm": 0.0, "loss": 0.0}, "suspect"),
        (EQUAL, {"grad_norm": 0.0, "loss": 0.0}, "dead batch"),
        (EQUAL, {"grad_norm": 0.5, "loss": 0.0}, "other terms"),
        (DIFFERENT, {"grad_norm": math.nan, "loss": 0.1}, "not finite"),
        (EQUAL, {"grad_norm": 0.0, "loss": math.nan}, "not finite"),
    ],
)
def test_a_step_is_of_one_kind(rewards: list[float], metrics: dict[str, float], kind: str) -> None:
    section = zero_loss_section(inputs_of(run_of(group_of(rewards, step=3), metrics={3: metrics})))
    assert section.tables[0].rows[0][-1] == kind


def test_findings_count_kinds_and_name_the_first_step() -> None:
    groups = [group_of(row, step=step) for step, row in ((1, DIFFERENT), (2, EQUAL), (3, DIFFERENT), (4, DIFFERENT))]
    metrics = {1: {"grad_norm": 0.5}, 2: {"grad_norm": 0.0}, 3: {"grad_norm": 0.0}, 4: {"grad_norm": 0.4, "loss": 0.0}}
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=metrics)))
    suspect, dead, good, on_policy = section.findings
    assert good == "2 of 4 steps have a gradient from live groups."
    assert suspect.startswith("1 of 4 steps (first: step 3): no gradient although a group has unequal rewards")
    assert dead.startswith("1 of 4 steps (first: step 2): no gradient, and none was due")
    assert on_policy.startswith("1 of 4 steps (first: step 4): loss near zero with a gradient: healthy")
    assert section.command == "gradscope replay made-up"
    assert section.next_step.startswith("Look at a suspect step")
    assert [chart.series[0].values for chart in section.charts] == [(0.5, 0.0, 0.0, 0.4), (None, None, None, 0.0)]


@pytest.mark.parametrize("name", ["clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac"])
def test_tokens_beyond_the_clip_are_told_where_they_are_most(name: str) -> None:
    for share, sentences in (
        (0.6, ["The ratio of 60.0 % of tokens was beyond the clip: they gave no gradient."]),
        (0.4, []),
        (math.nan, []),
        (7.0, []),
    ):
        metrics = {step: {"grad_norm": 0.5, name: share} for step in (1, 2)}
        section = zero_loss_section(inputs_of(run_of(*(group_of(DIFFERENT, step=s) for s in (1, 2)), metrics=metrics)))
        assert [sentence for sentence in section.findings if "clip" in sentence] == sentences
        assert (section.severity, "num_iterations" in section.next_step) == (
            ("look", True) if sentences else ("fine", False)
        )


def test_healthy_steps_need_no_replay_and_norms_of_several_steps_are_not_judged() -> None:
    section = zero_loss_section(inputs_of(run_of(group_of(DIFFERENT, step=1), metrics={1: {"grad_norm": 0.5}})))
    assert (section.command, section.next_step.split(":")[0]) == ("", "Nothing to do here")
    dead = zero_loss_section(inputs_of(run_of(group_of(EQUAL, step=1), metrics={1: {"grad_norm": 0.0}})))
    assert dead.next_step.startswith("Steps without a live group cost rollouts and teach nothing")
    run = run_of(group_of(DIFFERENT, step=1), metrics={1: {"grad_norm": 0.5}}, notes={1: "two updates in one"})
    assert str(zero_loss_section(inputs_of(run)).missing).startswith("The log has no grad_norm that belongs to one")


def test_a_norm_that_is_not_finite_comes_first_and_is_drawn() -> None:
    groups = [group_of(DIFFERENT, step=step) for step in (1, 2, 3)]
    metrics = {1: {"grad_norm": 0.5}, 2: {"grad_norm": math.nan}, 3: {"grad_norm": 0.0}}
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=metrics)))
    assert section.findings[0].startswith("1 of 3 steps (first: step 2): the trainer logged NaN or infinity")
    assert section.next_step.startswith("Look at the first step that is not finite")
    assert str(section.charts[0].series[0].values) == "(0.5, nan, 0.0)"


def test_a_step_that_stands_out_is_named_with_the_command_that_takes_it_apart() -> None:
    groups = [group_of(DIFFERENT, step=step) for step in range(1, 21)]
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=norms_with())))
    assert section.findings[0].startswith("Step 7 stands out: grad_norm 9, 8.18 times the 1.1 of the 19 steps around")
    assert (section.severity, section.command) == ("look", "gradscope spike made-up")
    assert section.next_step.startswith("Look at what changed there")
    suspect = zero_loss_section(inputs_of(run_of(*groups, metrics=norms_with(grad_norm=0.0))))
    assert suspect.findings[1].startswith("Step 7 stands out")
    assert suspect.command == "gradscope replay made-up"


@pytest.mark.parametrize("rest", [{"at_seven": 1.2}, {"grad_norm": math.nan}, {"at_seven": 1.2, "loss": 9e9}])
def test_without_an_outlier_or_a_finite_number_nothing_is_added(rest: dict[str, float]) -> None:
    groups = [group_of(DIFFERENT, step=step) for step in range(1, 21)]
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=norms_with(**rest))))
    assert not any("stand" in finding or "broken" in finding for finding in section.findings)
    assert section.command == ""


DEAD = with_fields(group_of([1, 1], step=1, prompt="dead"), completion_ids=(1,) * 30)
LIVE = with_fields(group_of([1, 0], step=1), completion_ids=(1,) * 10)
ALIVE = with_fields(group_of([0, 1], step=2), completion_ids=(1,) * 10)


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


def test_groups_that_another_baseline_moves_dilute_nothing() -> None:
    moved = replace(degeneracy_report(), num_moved=degeneracy_report().num_groups)
    assert loss_scale_section(inputs_of(run_of(DEAD, LIVE), degeneracy=moved)).tables[0].rows == ((1, 1.0),)


@pytest.mark.parametrize("other", [[1.0], [0.0], [None, 1.0], [None, None]])
def test_a_group_that_cannot_be_judged_is_neither_live_nor_dead(other: list[float | None]) -> None:
    """Of 7 dead groups and 2 single rollouts 11.8 % were live, where `degeneracy` left the two out."""
    groups = (DEAD, group_of(other, step=1, prompt="other"))
    assert section_of(run_of(*groups)).findings[0].startswith("None of the rollouts")
    for norm, kind in ((0.0, "dead batch"), (1.0, "learning")):
        run = run_of(*groups, metrics={1: {"grad_norm": norm, "loss": 1.0}})
        assert zero_loss_section(inputs_of(run)).tables[0].rows == ((1, 1.0, norm, 0, 2, kind),)


def test_without_a_live_rollout_there_is_nothing_to_dilute() -> None:
    section = section_of(run_of(DEAD))
    assert section.findings[0].startswith("None of the rollouts that the loss averages over is live")
    assert section.severity == "look"


def test_without_token_ids_rollouts_are_counted_and_with_them_all_sequences() -> None:
    section = section_of(run_of(group_of([1, 1], prompt="a"), group_of([1, 0]), settings={"loss_type": "dapo"}))
    assert "of the rollouts that the loss averages over" in section.findings[0]
    assert section.charts == ()
    before = Tokens(prompt_ids=(5,), completion_ids=(7,) * 20, mask=(True,) * 20)
    multi_turn = with_fields(LIVE, earlier=(before,))
    section = section_of(run_of(DEAD, multi_turn, settings={"loss_type": "dapo", "beta": 0}))
    assert section.tables[0].rows == ((1, 0.5),)


def test_kl_parts_and_dead_groups_say_what_to_do() -> None:
    grams = [gram_of([[1.0]], ["a"], step=step, parts={"kl": (part, 0.0)}) for step, part in ((1, 0.1), (2, 0.4))]
    section = section_of(run_of(LIVE, ALIVE, metrics={1: {"kl": 0.5}}), grams=grams)
    assert section.findings[1] == (
        "The KL part has 40.0 % of the gradient's norm at step 2, the most of the 2 steps recomputed."
    )
    assert section.tables[0].rows == ((1, 1.0, 0.1, 0.5), (2, 1.0, 0.4, None))
    assert section_of(run_of(LIVE, ALIVE)).next_step.startswith("Nothing to do: every group is live")
    dead = section_of(run_of(DEAD, LIVE, ALIVE)).next_step
    assert dead.startswith("Dead groups act like a learning rate scaled by 0.50 to 1.00 from step to step")
    assert "beta" not in dead
    held = section_of(run_of(LIVE, ALIVE), grams=[gram_of([[1.0]], ["a"], step=1, parts={"kl": (0.9, 0.0)})])
    assert held.findings[0].startswith("The KL part has 90.0 % of the gradient's norm")  # what asks for a look
    assert held.next_step == "The KL part nears the whole gradient and holds the policy where it is: lower beta."


@pytest.mark.parametrize(
    ("settings", "metrics", "sentence"),
    [
        ({"beta": 0}, {}, "The loss has no KL term (beta = 0)."),
        ({"kl_coef": 0.3}, {}, "Whether the loss has a KL term is not in the log: name beta"),
        ({"beta": 0.3}, {}, "How much of the gradient a KL term makes needs"),
        ({"beta": 0.1}, {1: {"kl": 0.5}}, "The trainer logged a KL term; how much of the gradient it makes needs"),
        ({"trainer": "verl"}, {1: {"actor/kl_loss": 0.5}}, "The trainer logged a KL term; how much"),
        ({"trainer": "nemo-rl"}, {1: {"approx_kl": 0.5}}, "How much of the gradient a KL term makes needs"),
        (None, {}, "Whether the loss has a KL term is not in the log"),
    ],
)
def test_without_gradients_the_kl_part_is_what_settings_and_log_say(
    settings: dict[str, object] | None, metrics: dict[int, dict[str, float]], sentence: str
) -> None:
    assert section_of(run_of(LIVE, settings=settings, metrics=metrics)).findings[1].startswith(sentence)


def test_without_a_beta_trl_alone_has_no_kl_term() -> None:
    run = run_of(LIVE, settings={})
    run = replace(run, source=replace(run.source, format="trl"))
    assert section_of(run).findings[1] == "The loss has no KL term (beta = 0)."


def test_the_tokens_furthest_from_the_reference_are_listed_for_the_last_step() -> None:
    blank = replace(kl(6), top=(replace(kl(6).top[0], text="\n"),))
    section = section_of(run_of(LIVE, ALIVE), parts=TokenParts(kl=(kl(1), blank)))
    assert section.findings[-1] == kl_findings([blank])[0]
    table, token = section.tables[-1], blank.top[0]
    assert table.caption.startswith("The 1 tokens of step 6 ")
    assert table.rows == ((f"{token.group_id} #3", 12, repr("\n"), -12.25, -0.5, -11.75, 126_742.0),)
