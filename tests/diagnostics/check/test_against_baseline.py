from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.diagnostics.check.against_baseline import baseline_verdict, judge
from gradscope.diagnostics.check.measure import check_run
from gradscope.estimate import Estimate
from gradscope.results.check import BaselineMetric
from tests.diagnostics.check.logs import write_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Twenty prompts: every second group is dead."""
    return write_log(tmp_path / "log.jsonl", {f"p{n}": [1, n % 2, 1, 1] for n in range(20)})


@pytest.fixture
def baseline(log: Path, tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    report = check_run(log, requirements=["frac_reward_zero_std <= 1"], baseline=path, update_baseline=True)
    assert len(report.verdicts) == 1
    return path


def test_the_same_run_passes_its_own_baseline(log: Path, baseline: Path) -> None:
    report = check_run(log, track=["frac_reward_zero_std"], baseline=baseline)
    (verdict,) = report.verdicts
    assert report.outcome == "pass"
    assert verdict.change is not None
    assert (verdict.change.change.value, verdict.change.num_paired) == (0.0, 20)


def starved(tmp_path: Path, num_more: int) -> Path:
    """The same prompts, with so many more dead groups."""
    dead = {f"p{n}": [1, 1, 1, 1] if n % 2 or n < 2 * num_more else [1, 0, 1, 1] for n in range(20)}
    return write_log(tmp_path / "starved.jsonl", dead)


def test_a_starved_run_fails_with_number_meaning_and_next_step(tmp_path: Path, baseline: Path) -> None:
    report = check_run(starved(tmp_path, 8), track=["frac_reward_zero_std"], baseline=baseline)
    (verdict,) = report.verdicts
    assert report.outcome == "fail"
    assert "was 0.5 in the baseline and is 0.9; the change is +0.4 [" in verdict.meaning
    assert "paired over 20 prompts" in verdict.meaning
    assert "gradscope degeneracy" in verdict.next_step


@pytest.mark.parametrize(("rule", "outcome"), [("interval", "pass"), ("value", "fail")])
def test_a_change_that_chance_could_make_fails_by_value_only(
    tmp_path: Path, baseline: Path, rule: str, outcome: str
) -> None:
    worse = starved(tmp_path, 1)
    report = check_run(worse, track=["frac_reward_zero_std"], baseline=baseline, rule=rule)  # type: ignore[arg-type]
    assert report.outcome == outcome


def test_a_margin_allows_a_change(tmp_path: Path, baseline: Path) -> None:
    margins = {"frac_reward_zero_std": 0.9}
    report = check_run(starved(tmp_path, 8), track=["frac_reward_zero_std"], baseline=baseline, margins=margins)
    assert report.outcome == "pass"
    assert report.verdicts[0].limit == pytest.approx(1.4)


def test_getting_better_never_fails(tmp_path: Path, baseline: Path) -> None:
    live = write_log(tmp_path / "live.jsonl", {f"p{n}": [1, 0, 1, 1] for n in range(20)})
    assert check_run(live, track=["frac_reward_zero_std"], baseline=baseline).outcome == "pass"


def test_what_the_baseline_lacks_is_unknown_unless_allowed(log: Path, baseline: Path) -> None:
    report = check_run(log, track=["pass_rate"], baseline=baseline)
    assert report.outcome == "unknown"
    assert report.verdicts[0].next_step == "Write the baseline again from a good run: --update-baseline"
    allowed = check_run(log, track=["pass_rate"], baseline=baseline, allow_unknown=["pass_rate"])
    assert (allowed.outcome, allowed.verdicts[0].outcome, allowed.verdicts[0].allowed) == ("pass", "unknown", True)


@pytest.mark.parametrize(
    ("better", "low", "high", "outcome"),
    [
        ("lower", 0.11, 0.5, "fail"),
        ("lower", 0.09, 0.5, "pass"),
        ("lower", -0.5, -0.2, "pass"),
        ("higher", -0.5, -0.11, "fail"),
        ("higher", -0.5, -0.09, "pass"),
        ("higher", 0.2, 0.5, "pass"),
        ("neither", 0.11, 0.5, "fail"),
        ("neither", -0.5, -0.11, "fail"),
        ("neither", -0.2, 0.2, "pass"),
    ],
)
def test_the_near_end_of_the_interval_must_be_worse_than_the_margin(
    better: str, low: float, high: float, outcome: str
) -> None:
    change = Estimate(value=(low + high) / 2, low=low, high=high)
    assert judge(change, better, 0.1, "interval") == outcome  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["interval", "value"])
def test_a_fact_is_judged_by_itself(rule: str) -> None:
    assert judge(Estimate.exact(0.2), "lower", 0.1, rule) == "fail"  # type: ignore[arg-type]
    assert judge(Estimate.exact(0.1), "lower", 0.1, rule) == "pass"  # type: ignore[arg-type]


def test_a_trend_is_worse_in_either_direction() -> None:
    """A falling share of dead groups is better; along its line it is only different."""
    before, after = (BaselineMetric(estimate=Estimate(value=v, low=v - 0.01, high=v + 0.01)) for v in (0.5, 0.2))
    assert baseline_verdict("frac_reward_zero_std", before, after, 0.0, "interval", "run").outcome == "pass"
    verdict = baseline_verdict("frac_reward_zero_std@trend", before, after, 0.0, "interval", "run")
    assert (verdict.outcome, verdict.op) == ("fail", "==")


def test_a_side_without_a_value_decides_nothing() -> None:
    known, unknown = (
        BaselineMetric(estimate=Estimate.exact(0.5)),
        BaselineMetric(estimate=Estimate.undefined_because("no log")),
    )
    verdict = baseline_verdict("kl", known, unknown, 0.0, "interval", "run")
    assert (verdict.outcome, verdict.limit) == ("unknown", 0.5)
    assert verdict.meaning == "kl cannot be compared with the baseline: no log. What is not known does not pass."
    assert verdict.next_step == "Look at the trainer's own log of this metric, or at the requirement on it above."
