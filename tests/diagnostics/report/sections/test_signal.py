import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.passk.comparison import Samples
from gradscope.diagnostics.report.sections import signal
from gradscope.estimate import Estimate
from gradscope.findings.degeneracy import dead_group_advice
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.report import ReportSection
from gradscope.rollouts.groups import RolloutGroup
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.render.examples import degeneracy_report, passk_report, source, with_steps


def with_course(*shares: float | None) -> DegeneracyReport:
    report = degeneracy_report(num_steps=len(shares))
    zero = Estimate.exact(0.0)
    kinds = {"frac_all_fail": zero, "frac_all_pass": zero, "frac_tied": zero}
    rows = zip(report.by_step, shares, strict=True)
    steps = tuple(
        replace(
            row,
            frac_reward_zero_std=Estimate.undefined_because("no group") if share is None else Estimate.exact(share),
            **kinds,
        )
        for row, share in rows
    )
    return replace(with_steps(report, steps), findings=("First.", "Second."))


def trend_of(*shares: float | None) -> tuple[str, ...]:
    return signal.signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=with_course(*shares))).findings


def test_the_trend_stands_second_with_its_direction_and_its_bounds() -> None:
    first, trend, last = trend_of(0.1, 0.2, 0.31, 0.4)
    assert (first, last) == ("First.", "Second.")
    assert trend.startswith("From step 1 to 4 the share changes by +30.3 points along its line [+")
    assert "undecided" not in trend
    assert trend_of(*[0.1, 0.6] * 10)[1].endswith("so its direction is undecided.")
    few = "Over 3 steps the share changes by +0.0 points: too few to tell where it goes."
    assert trend_of(1.0, 0.0, 1.0)[1] == few, "its interval reached from -100 to +100"
    assert trend_of(0.1, 0.2, 0.31, 0.4, None)[1] == trend  # a step without a group to judge
    assert trend_of(0.0, 0.0, 0.0, 0.0) == ("First.", "Second.")
    assert trend_of(0.1, 0.2) == ("First.", "Second.")
    # a share that collapses is not undecided beside its sentence
    assert not any("undecided" in sentence for sentence in trend_of(*[0.2] * 30, *[1.0] * 10))


def test_rollouts_that_are_one_text_are_told_with_what_it_does() -> None:
    """Eight copies of one answer, half of them right by the log, were "fine": their gradients cancel."""
    same = [with_fields(group_of([1, 0, 0, 1], step=step), completion=["seven"] * 4) for step in range(3)]
    other = [with_fields(group_of([1, 0, 0, 1], step=step), completion=list("abcd")) for step in range(3)]
    dead = [with_fields(group_of([1] * 4, step=step, prompt=str(step)), completion=["seven"] * 4) for step in range(30)]
    few = [with_fields(group, completion=[*"aabc"]) for group in dead]
    for groups, severity, first in (
        (same, "look", "In 3 groups identical completions have different rewards"),
        (dead, "problem", "75.0 % of completions are exact copies"),  # what makes them dead
        (few, "problem", "30 of 30 groups"),
        (other, "fine", "0 of 3 groups"),
    ):
        run = run_of(*groups)
        section = signal.signal_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))
        assert (section.severity, section.findings[0].startswith(first)) == (severity, True)
        assert section.next_step.startswith("Look at the temperature") == first.startswith("75")
    torn = [with_fields(group_of([1, 0] * 6), completion=["a", *"abcdefghijk"])]
    section = signal.signal_section(inputs_of(run_of(*torn), degeneracy=degeneracy_of_run(run_of(*torn))))
    assert section.findings[0].startswith("In 1 group identical completions have different rewards: ")
    assert section.next_step == "Score one completion twice, and see what differs."


def test_a_page_shows_the_first_prompts_and_cuts_long_ones() -> None:
    groups = [group_of([0, 0], prompt=f"{n:03}" + "x" * 100) for n in range(220)]
    run = run_of(*groups)
    prompts = signal.signal_section(inputs_of(run, degeneracy=degeneracy_of_run(run))).tables[1]
    assert len(prompts.rows) == signal.MAX_PROMPTS
    assert "20 more prompts, 20 of them without a gradient" in prompts.caption
    assert len(str(prompts.rows[0][0])) == 80


def test_the_trend_follows_its_share_and_advice_is_not_repeated() -> None:
    report = with_course(0.1, 0.2, 0.3, 0.4)
    advice = dead_group_advice(replace(report, frac_reward_conflict=Estimate.exact(0.6)))
    report = replace(
        report,
        frac_reward_conflict=Estimate.exact(0.6),
        findings=("One decides.", advice, "So many are dead.", "More."),
    )
    section = signal.signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=report))
    assert [text.split()[0] for text in section.findings] == ["One", "So", "From", "More."]
    assert section.next_step == advice
    assert section.severity == "problem"


def test_kinds_are_stacked_where_there_are_any_else_equal_rewards() -> None:
    run = run_of(group_of([1, 0]))
    (chart,) = signal.signal_section(inputs_of(run, degeneracy=degeneracy_report())).charts
    assert [series.name for series in chart.series] == ["all fail", "all pass"]
    (chart,) = signal.signal_section(inputs_of(run, degeneracy=with_course(0.25, 0.5))).charts
    assert [(series.name, series.values) for series in chart.series] == [("equal rewards", (0.25, 0.5))]


def test_a_single_step_has_one_table_and_no_chart() -> None:
    section = signal.signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=degeneracy_report(num_steps=1)))
    assert section.charts == ()
    kinds, environments, prompts = section.tables
    assert environments.columns[0].title == "environment"
    assert prompts.rows[1] == ("p2", 30, 240, 1.0, "always", 1, None)
    assert kinds.rows[0][0] == "degenerate groups"
    assert kinds.rows[0][1].value == 0.4125


ACCURACY, FORMAT = [2.0, 0.0], [0.0, 1.0]


def section_of(*groups: RolloutGroup) -> ReportSection:
    run = run_of(*groups, settings={"scale_rewards": "none"})
    return signal.rewards_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))


def test_a_function_that_pulls_the_other_way_has_a_negative_share() -> None:
    """The sum differs by 1 within a group, accuracy by 2 and format by -1: shares of 2 and -1."""
    section = section_of(
        *(group_of([2.0, 1.0], prompt=f"p{n}", functions={"acc": ACCURACY, "form": FORMAT}) for n in range(6))
    )
    rows = {row[0]: row for row in section.tables[0].rows}
    assert (rows["acc"][3].value, rows["acc"][4].value) == (pytest.approx(2.0), pytest.approx(2.0))
    assert rows["form"][3].value == pytest.approx(-1.0)
    assert section.findings[:2] == (
        "By reward function: 'acc' is tied in 0.0 % of groups and makes 200.0 % of the squared advantage; 'form' is "
        "tied in 0.0 % of groups and makes -100.0 % of the squared advantage (a negative share undoes what "
        "the others make).",
        'Shares of the squared advantage are of the advantages of scale_rewards="none".',
    )
    assert section.tables[1].rows[0][2].value == pytest.approx(-1.0)
    assert section.command == "gradscope degeneracy made-up --show rewards"
    assert section.next_step.startswith("Whether side rewards decide groups is undefined: ")


def test_functions_that_never_differ_or_are_no_part_of_the_reward_are_named() -> None:
    groups = [group_of([6.0, 0.5], prompt=f"p{n}", functions={"acc": ACCURACY, "form": [1, 0]}) for n in range(6)]
    assert section_of(*groups).findings[1] == (
        "What each makes is not known: the weights of the functions are not known."
    )
    functions = {"acc": [1, 0, 2], "form": [1, 1, 1], "turns": [3, 4, 1]}
    sole = [group_of([2.0, 1.0, 3.0], prompt=f"p{n}", functions=functions) for n in range(9)]
    section = section_of(*sole)
    assert "'form' is tied in every group: it adds no gradient." in section.findings
    assert "Logged with the reward and no part of it: turns." in section.findings
    assert section.severity == "look"


def test_a_conflict_is_a_problem_with_its_remedy() -> None:
    functions = {"acc": [1, 1], "short": [-0.5, -0.25]}
    section = section_of(*(group_of([0.5, 0.75], prompt=f"p{n}", functions=functions) for n in range(20)))
    assert section.severity == "problem"
    assert "'acc' is tied in 100.0 % of groups and makes 0.0 %" in section.headline
    assert any(finding.startswith("'short' alone decides 100.0 %") for finding in section.findings)
    assert section.next_step == "Give 'short' no weight where 'acc' is tied."


def test_functions_that_alone_differ_or_are_alone_are_counted() -> None:
    functions = {"acc": [1, 0], "short": [0.5, 0.5]}
    section = section_of(*(group_of([1.5, 0.5], prompt=f"p{n}", functions=functions) for n in range(3)))
    assert "Alone in telling rollouts of a group apart: 'acc' in 3 groups." in section.findings
    assert section.next_step == "See whether it can tell completions apart."
    groups = [group_of([1.0, reward], prompt=str(reward), functions={"acc": [1.0, reward]}) for reward in (0.0, 1.0)]
    assert section_of(*groups).findings == ("There is one reward function, 'acc': it makes all of the advantage.",)
    assert str(section_of(group_of([1.0, 0.0])).missing).startswith("The log has no reward per function.")
    assert "It was not read" in str(signal.rewards_section(inputs_of(run_of(group_of([1.0, 0.0])))).missing)


def test_means_are_drawn_over_several_steps() -> None:
    functions = ({"acc": [step, 0.0], "form": [0.0, 1.0]} for step in (1, 2))
    groups = [group_of([step + 1.0, 1.0], step=step, functions=next(functions)) for step in (1, 2)]
    (chart,) = section_of(*groups).charts
    assert chart.series[0].values == (0.5, 1.0)
    assert section_of(groups[0]).charts == ()


def test_a_judge_that_fails_for_some_rollouts_of_a_group_is_told() -> None:
    def headline(num_failed: int) -> str:
        groups = [
            group_of([2.0, 1.0], prompt=f"p{n}", functions={"acc": [1, 0], "judge": [1, None if n < num_failed else 1]})
            for n in range(20)
        ]
        return section_of(*groups).headline

    assert headline(2) == "'judge' is missing for some rollouts of 2 of 20 groups, and not for others."
    assert headline(1).endswith("'judge' is missing in some groups.")


def test_a_conflict_of_a_main_reward_that_is_missing_somewhere_is_said_without_its_share() -> None:
    """A judge of 0 and 1 that fails at times, beside graded rewards: `report` stopped at a bug."""
    groups = [
        group_of([0.5, 0.25], prompt=f"p{n}", functions={"dense": [0.5, 0.25], "judge": [None if n else 0, 0]})
        for n in range(20)
    ]
    assert section_of(*groups).headline


def test_few_groups_that_side_rewards_decide_ask_for_nothing() -> None:
    """Of 960 groups 7 % were of a format reward alone, and each such run was to be looked at."""

    def severity(num_decided: int) -> str:
        decided = {"acc": [1, 1], "form": [1, 0]}
        groups = [
            group_of([2, 1], prompt=f"p{n}", functions=decided)
            if n < num_decided
            else group_of([2, 1], prompt=f"p{n}", functions={"acc": [1, 0], "form": [1, 1]})
            for n in range(50)
        ]
        return section_of(*groups).severity

    assert (severity(4), severity(5)) == ("fine", "look")


def test_groups_that_are_left_out_are_said_where_they_are_many() -> None:
    """Of half the groups no reward was logged, and all was fine."""
    groups = [group_of([1, 0, 1 if n % 2 else None], prompt=f"p{n}") for n in range(20)]
    for run, lead in ((run_of(*groups), "10 of 20 groups lack a reward"), (run_of(*groups[1::2]), "0 of 10 groups (")):
        section = signal.signal_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))
        assert section.headline.startswith(lead)
        assert section.severity == ("look" if lead.startswith("10") else "fine")


def test_a_share_that_moves_is_said_with_its_mean() -> None:
    groups = [
        group_of([1, 1] if step >= 8 else [1, 0], step=step, prompt=f"p{step}{n}")
        for step in range(10)
        for n in range(9)
    ]
    run = run_of(*groups)
    section = signal.signal_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))
    assert section.headline.startswith("18 of 90 groups (20.0 %")
    assert section.headline.endswith("from 0.0 % of the first fifth of steps to 100.0 % of the last (steps 8 to 9).")
    assert section.severity == "problem"  # at its end


RUN = run_of(group_of([1, 0]))
REPORT = passk_report()


def samples(name: str, *correct: int) -> Samples:
    prompts = tuple(f"p{index}" for index in range(len(correct)))
    counts = np.array(correct, dtype=np.int64)
    return Samples(
        name=name,
        source=source(name),
        prompts=prompts,
        num_samples=np.full(len(correct), 4, dtype=np.int64),
        num_correct=counts,
        num_missing=0,
    )


def test_problems_that_only_the_first_solve_are_listed_and_many_are_cut() -> None:
    files = (samples("before", 0, 1, 4, 2), samples("after", 4, 0, 4, 0))
    section = signal.coverage_section(inputs_of(RUN, passk=REPORT, samples=files))
    assert section.tables[-1].rows == (("p1", "1/4", "0/4"), ("p3", "2/4", "0/4"))
    assert section.tables[-1].caption == (
        "Problems of which before has a correct sample and after none (2), also by chance where few were correct; "
        "correct samples in each"
    )
    assert section.findings[-1].startswith("Of 64 prompts the samples of before.jsonl alone solved 2, those of ")
    assert section.findings[-1].endswith(" alone 12.")
    number = signal.MAX_PROBLEMS + 5
    files = (samples("before", *[1] * number), samples("after", *[0] * number))
    table = signal.coverage_section(inputs_of(RUN, passk=REPORT, samples=files)).tables[-1]
    assert len(table.rows) == signal.MAX_PROBLEMS
    assert f"({number}, the first {signal.MAX_PROBLEMS})," in table.caption


def test_a_certain_loss_is_advised_on() -> None:
    uncertain = signal.coverage_section(inputs_of(RUN, passk=REPORT))
    assert uncertain.findings == REPORT.findings
    assert uncertain.next_step.startswith("No loss of coverage is certain")
    *rows, last = REPORT.comparison.rows
    for low, severity, conclusion in ((-0.04, "fine", "0.05 is excluded;"), (-0.5, "unknown", "0.05 is possible;")):
        open_one = replace(last, difference=Estimate(value=-0.02, low=low, high=0.3))
        report = replace(REPORT, comparison=replace(REPORT.comparison, rows=(*rows, open_one)))
        section = signal.coverage_section(inputs_of(RUN, passk=report))
        assert section.severity == severity
        assert conclusion in section.next_step
    lost = replace(last, difference=Estimate(value=-0.2, low=-0.3, high=-0.1))
    report = replace(REPORT, comparison=replace(REPORT.comparison, rows=(*rows, lost)))
    assert signal.coverage_section(inputs_of(RUN, passk=report)).next_step.startswith("Coverage fell at the largest k")
    section = signal.coverage_section(inputs_of(RUN, passk=passk_report(num_files=1), samples=(samples("before", 1),)))
    assert "one file alone has no direction" in section.next_step
    assert [table.caption[:6] for table in section.tables] == ["pass@k"]
    assert section.charts[0].series[0].values[-1] is None
