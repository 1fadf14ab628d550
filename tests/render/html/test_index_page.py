"""The index of a folder: common scales, complete, and deaf to the names of folders."""

from __future__ import annotations

import re

from gradscope.estimate import Estimate
from gradscope.render.files.tables import tidy_tables
from gradscope.render.html.chart import CARD
from gradscope.render.html.index_page import render_index
from gradscope.results.report import RunIndex, RunSummary
from tests.render.examples import source
from tests.render.report_example import ATTACK


def summary(name: str, top: float) -> RunSummary:
    share = Estimate(value=0.5, low=0.4, high=0.6, num_units=8)
    return RunSummary(
        name=name,
        command=f"gradscope report '{name}'",
        steps=(1, 2, 3),
        num_rollouts=24,
        frac_reward_zero_std=share,
        reward=Estimate.exact(0.5, num_units=3),
        reward_change=Estimate.undefined_because(f"too few steps in {name}"),
        reward_by_step=(0.0, None, top),
        degenerate_by_step=(0.5, 0.5, 0.5),
        grad_norm_by_step=(None, None, None),
    )


INDEX = RunIndex(
    source=source(),
    name=ATTACK,
    runs=(summary("quiet", 1.0), summary(ATTACK, 4.0)),
    left_out=((ATTACK, f"unreadable {ATTACK}"),),
    findings=(f"Most in {ATTACK}.", "Second."),
)
PAGE = render_index(INDEX)


def test_every_run_has_the_curves_that_its_log_holds() -> None:
    assert PAGE.count("<article ") == 2
    assert PAGE.count('<figure class="chart">') == 4
    assert "gradient norm, as logged" not in PAGE


def test_a_kind_of_curve_has_one_scale_on_all_runs() -> None:
    ends = [points.split()[-1].split(",")[1] for points in re.findall(r'class="line s0" points="([^"]*)"', PAGE)]
    highest_of_quiet, highest_of_loud = float(ends[1]), float(ends[4])
    assert highest_of_loud == CARD.top
    assert highest_of_quiet == CARD.top + 0.75 * (CARD.height - CARD.top - CARD.bottom)


def test_names_of_folders_stay_text() -> None:
    assert PAGE.count("<script>") == 1
    assert "<img" not in PAGE
    assert "not read: &lt;script&gt;" in PAGE
    assert render_index(INDEX) == PAGE


def test_its_table_has_a_row_a_run() -> None:
    rows = tidy_tables(INDEX)["report_index_runs"]
    assert [row["name"] for row in rows] == ["quiet", ATTACK]
    assert rows[0]["frac_reward_zero_std"] == 0.5
    assert rows[0]["frac_reward_zero_std_low"] == 0.4
