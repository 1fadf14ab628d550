"""What metrics, pairs and requirements are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.errors import UsageError
from gradscope.estimate import Estimate
from gradscope.render.words.labels import condition, metric_title, pair_label
from gradscope.results.verdicts import Change
from tests.render.compare_example import comparison
from tests.render.examples import check_report


def test_a_pair_is_called_by_what_differs() -> None:
    report = comparison()
    by_rate, by_form = report.pairs[0], report.pairs[2]
    assert pair_label(by_rate, report) == "learning_rate 0.0002 - 0.0001\n  at grpo"
    assert pair_label(by_form, report).endswith("\n  at learning_rate 0.0001")


def test_logs_that_tell_no_setting_are_called_by_their_names() -> None:
    report = comparison()
    first, second, *_ = report.cells
    cells = tuple(replace(cell, settings={"run": name}) for cell, name in ((first, "a/run"), (second, "b/run")))
    pair = replace(report.pairs[0], first=first.name, second=second.name, changed="run")
    assert pair_label(pair, replace(report, cells=cells)) == "b/run - a/run"


def test_a_label_escapes_names_and_keeps_to_its_lines() -> None:
    report = comparison()
    for pair in report.pairs:
        label = pair_label(pair, report)
        assert "\x1b" not in label
        assert len(label.splitlines()) == 2
        assert max(map(len, label.splitlines())) <= 45


def test_a_budget_is_its_own_title() -> None:
    assert [metric_title(name) for name in ("pass@16", "pass^2", "p_holm")] == ["pass@16", "pass^2", "p corrected"]
    with pytest.raises(UsageError, match="There is no metric 'xyzzy'"):
        metric_title("xyzzy")


def test_two_runs_that_differ_in_several_things_are_named_in_full() -> None:
    report = comparison()
    pair = replace(report.pairs[0], changed="advantage, learning_rate")
    assert pair_label(pair, report) == f"{pair.second} -\n  {pair.first}"


VERDICT = check_report().verdicts[0]


@pytest.mark.parametrize(("limit", "text"), [(0.3, "0.3"), (1e-05, "1e-05"), (2.0, "2")])
def test_a_limit_reads_as_it_was_typed(limit: float, text: str) -> None:
    assert condition(replace(VERDICT, limit=limit)) == f"frac_reward_zero_std <= {text}"


def test_a_baseline_has_no_limit_of_its_own() -> None:
    some = Estimate.exact(0.5)
    change = Change(baseline=some, change=some, margin=0.0, rule="interval", num_paired=0)
    assert condition(replace(VERDICT, change=change)) == "frac_reward_zero_std against the baseline"
