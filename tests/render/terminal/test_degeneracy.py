import re

import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.registry import render_table
from gradscope.results.degeneracy import DegeneracyReport
from tests.render import examples
from tests.render.printing import printed

REPORT = examples.degeneracy_report()


def test_degeneracy_says_shares_kinds_gap_course_and_what_was_asked_for() -> None:
    text = " ".join(printed(render_table(REPORT)).split())
    for part in (
        "interval, 128 prompts]",
        "160 groups of 8, 1,280 rollouts",
        "no gradient 0.412 [0.33, 0.49] ▅",
        "of all sampled 0.530 [0.49, 0.57]",
        "all fail 0.250 [0.18, 0.32] ▄",
        "i.i.d.: p is the mean pass rate of this log",
        "8 0.412 [0.33, 0.49] 0.009 +0.404 [+0.32, +0.48] observed",
        "a forecast at G = 16 could be anything from 0.05 to 0.81",
        "resampling 8 0.200 10.90",
    ):
        assert part in text
    assert "tied" not in text
    single = printed(render_table(replace(REPORT, by_group_size=REPORT.by_group_size[:1])))
    assert "i.i.d." not in single


def test_further_tables_of_degeneracy_have_parts_costs_formulations_and_rewards() -> None:
    text = " ".join(printed(render_table(REPORT, ("all",))).split())
    for part in (
        "tied, neither pass nor fail 0.000",
        "i.i.d. prediction 0.009 [0.008, 0.014]",
        "Jensen gap +0.404 [+0.32, +0.48]",
        "with p of each step 0.022 [0.016, 0.034]",
        "groups to sample for each live one 1.70 [1.49, 1.95]",
        "grpo 0.240 0.240 0.412",
        "format 1 0.200 0.820 0.180 70",
        "p2 30 240 1.000 always 1 —",
        "side rewards alone 0.200 [0.15, 0.25]",
        "Prompts: 1 never pass, 1 always pass (53.0 % of rollouts), 1 is live.",
        "p of the i.i.d. prediction: the mean pass rate of this log",
    ):
        assert part in text


def test_a_share_of_all_sampled_is_shown_where_there_is_one() -> None:
    """Other rows say why they have no number; this one would say so of every log that nothing filtered."""
    sampled = Estimate.undefined_because("no filter")
    behind = replace(REPORT.behind_filter, frac_zero_std_sampled=sampled)
    gap = replace(REPORT.gap_decomposition, over_time=Estimate.undefined_because("one step"))
    text = printed(render_table(replace(REPORT, behind_filter=behind, gap_decomposition=gap), ("all",)))
    assert "of all sampled" not in text
    assert "over time" in text


def test_ties_are_part_of_the_answer_where_there_are_any() -> None:
    tied = replace(examples.degeneracy_report(), frac_tied=examples.around(0.1))
    assert "tied between 0.100 [0.00, 0.20]" in " ".join(printed(render_table(tied)).split())


@pytest.mark.parametrize("logged", [{"num_moved": 66}, {"num_zeroed": 94}])
def test_groups_of_equal_rewards_have_a_gradient_where_advantages_say_so(logged: dict[str, int]) -> None:
    """Those that Sign or a critic moves were "no gradient" below a sentence that they move the policy."""
    for report, title in ((REPORT, "no gradient"), (replace(REPORT, **logged), "equal rewards")):
        lines = printed(render_table(report, ("shares",))).splitlines()
        assert sum(line.strip().startswith(f"{title} ") for line in lines) == 2


def test_a_long_run_joins_neighboring_steps() -> None:
    """The joined share is that of all their groups: each step of the example has as many."""
    report = examples.degeneracy_report(num_steps=200)
    text = printed(render_table(report, ("steps",)))
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d+-\d+ ", line)]
    assert [row[0] for row in (rows[0], rows[-1])] == ["1-10", "191-200"]
    assert len(rows) == 20
    first = [step.frac_reward_zero_std.value for step in report.by_step[:10]]
    assert rows[0][2] == f"{sum(share for share in first if share is not None) / 10:.3f}"
    assert "Each row joins about 10 steps" in " ".join(text.split())
    full = printed(render_table(examples.degeneracy_report(num_steps=80), ("steps",)))
    assert "Each row joins" not in full


def test_windows_that_were_asked_for_are_part_of_the_answer() -> None:
    report = examples.degeneracy_report(num_steps=4)
    windows = tuple(replace(row, last_step=row.step + 4) for row in report.by_step)
    text = printed(render_table(examples.with_steps(report, windows)))
    assert re.search(r"\n *1-5 ", text)
    assert "--show adds shares, cost" in text


def without_pass_rate(report: DegeneracyReport, num_steps: int) -> DegeneracyReport:
    """The first so many steps have none, and neither has the log."""
    none = Estimate.undefined_because("rewards have no threshold")
    steps = tuple(
        replace(row, pass_rate=none) if index < num_steps else row for index, row in enumerate(report.by_step)
    )
    return replace(examples.with_steps(report, steps), pass_rate=none, iid_prediction=none)


def test_what_no_step_has_is_no_column_and_what_some_lack_is_a_dash() -> None:
    report = examples.degeneracy_report(num_steps=100)
    text = printed(render_table(without_pass_rate(report, 5), ("steps",)))
    assert re.search(r"\n *1-5 .* —\n", re.sub(" +\n", "\n", text))
    text = printed(render_table(without_pass_rate(report, 100), ("steps",)))
    assert not [
        line for line in text.splitlines() if re.match(" *1-5 ", line) and ("—" in line or len(line.split()) > 6)
    ]


def test_numbers_that_are_undefined_for_one_reason_share_a_line() -> None:
    report = replace(examples.degeneracy_report(), by_group_size=())
    text = " ".join(printed(render_table(without_pass_rate(report, 0))).split())
    assert "Unknown: pass rate, because rewards have no threshold" in text
    assert "pass rate —" not in text


def test_the_trainers_own_share_has_a_column_only_where_it_was_logged() -> None:
    text = printed(render_table(REPORT, ("steps",)))
    assert "logged no share" in text.replace("\n", " ")
    assert "  logged" in text
