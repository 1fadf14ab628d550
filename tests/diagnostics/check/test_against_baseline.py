from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradscope.diagnostics.check.against_baseline import baseline_verdicts
from gradscope.diagnostics.check.measure import check_run
from gradscope.estimate import Estimate
from gradscope.results.check import BaselineMetric, Verdict
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
    assert report.verdicts[0].next_step == "Write the baseline again from a good run: --update-baseline --force"
    allowed = check_run(log, track=["pass_rate"], baseline=baseline, allow_unknown=["pass_rate"])
    assert (allowed.outcome, allowed.verdicts[0].outcome, allowed.verdicts[0].allowed) == ("pass", "unknown", True)


def around(value: float, half: float, num_units: int = 1000) -> BaselineMetric:
    return BaselineMetric(estimate=Estimate(value=value, low=value - half, high=value + half, num_units=num_units))


def judged(name: str, change: float, half: float = 0.1, margin: float = 0.1, rule: str = "interval") -> Verdict:
    """The verdict on one metric that was known exactly but for its interval, and has changed by so much."""
    before, after = around(1.0, half / 2**0.5), around(1.0 + change, half / 2**0.5)
    margins = {name: margin}
    (verdict,) = baseline_verdicts({name: before}, {name: after}, margins=margins, rule=rule, path="run")  # type: ignore[arg-type]
    return verdict


@pytest.mark.parametrize(
    ("name", "change", "outcome"),
    [
        ("frac_reward_zero_std", 0.21, "fail"),
        ("frac_reward_zero_std", 0.19, "pass"),
        ("frac_reward_zero_std", -0.5, "pass"),
        ("pass_rate", -0.21, "fail"),
        ("pass_rate", -0.19, "pass"),
        ("pass_rate", 0.5, "pass"),
        ("grad_norm@last20%", 0.21, "fail"),
        ("grad_norm@last20%", -0.21, "fail"),
        ("grad_norm@last20%", 0.1, "pass"),
    ],
)
def test_of_one_metric_the_near_end_of_the_interval_must_be_worse_than_the_margin(
    name: str, change: float, outcome: str
) -> None:
    assert judged(name, change).outcome == outcome


def test_the_more_metrics_the_farther_the_change_must_be() -> None:
    names = [f"metric{number}" for number in range(20)]
    before = {name: around(1.0, 0.1) for name in names}
    after = {**before, "metric3": around(1.3, 0.1)}
    alone, together = (
        baseline_verdicts(before, {name: after[name] for name in chosen}, path="run") for chosen in (["metric3"], names)
    )
    assert (alone[0].outcome, together[3].outcome) == ("fail", "fail")
    assert alone[0].change is not None
    assert together[3].change is not None
    assert together[3].change.p_value == pytest.approx(20 * (alone[0].change.p_value or 0.0))
    assert together[3].meaning.endswith("corrected for 20 metrics.")
    assert {verdict.outcome for verdict in together if verdict.metric != "metric3"} == {"pass"}


def test_a_number_without_an_interval_is_undecided_and_its_mean_is_advised() -> None:
    before, after = ({"kl": BaselineMetric(estimate=Estimate.exact(value))} for value in (0.5, 0.4))
    (verdict,) = baseline_verdicts(before, after, path="run")
    assert (verdict.outcome, verdict.change and verdict.change.p_value) == ("unknown", None)
    assert "How much of that is chance is not known" in verdict.meaning
    assert "such as kl@last20%" in verdict.next_step
    (again,) = baseline_verdicts(before, before, path="run")
    assert (again.outcome, again.meaning[-1]) == ("pass", ".")
    largest, last = ({f"kl@5-20:{word}": before["kl"]} for word in ("max", "last"))
    (verdict,) = baseline_verdicts(largest, {"kl@5-20:max": after["kl"]}, path="run")
    assert "such as kl@5-20:mean" in verdict.next_step
    assert baseline_verdicts(last, {"kl@5-20:last": after["kl"]}, path="run")[0].outcome == "unknown"


@pytest.mark.parametrize(
    ("change", "margin", "outcome"), [(0.2, 0.1, "fail"), (0.05, 0.1, "pass"), (-0.2, 0.1, "pass")]
)
def test_the_change_itself_decides_where_that_is_asked_for(change: float, margin: float, outcome: str) -> None:
    verdict = judged("frac_reward_zero_std", change, half=5.0, margin=margin, rule="value")
    assert (verdict.outcome, verdict.change and verdict.change.p_value) == (outcome, None)


def test_a_trend_is_worse_in_either_direction() -> None:
    """A falling share of dead groups is better; along its line it is only different."""
    assert judged("frac_reward_zero_std", -0.3).outcome == "pass"
    verdict = judged("frac_reward_zero_std@trend", -0.3)
    assert (verdict.outcome, verdict.op) == ("fail", "==")


def test_a_side_without_a_value_decides_nothing() -> None:
    known, unknown = (
        BaselineMetric(estimate=Estimate.exact(0.5)),
        BaselineMetric(estimate=Estimate.undefined_because("no log")),
    )
    (verdict,) = baseline_verdicts({"kl": known}, {"kl": unknown}, path="run")
    assert (verdict.outcome, verdict.limit) == ("unknown", 0.5)
    assert verdict.meaning == "kl cannot be compared with the baseline: no log. What is not known does not pass."
    assert verdict.next_step == "Look at the trainer's own log of this metric, or at the requirement on it above."


def test_a_logged_nan_fails_against_any_baseline() -> None:
    broken = BaselineMetric(estimate=Estimate.undefined_because("the trainer logged NaN at step 3"), is_not_finite=True)
    assert baseline_verdicts({"kl": around(1.0, 0.1)}, {"kl": broken}, path="run")[0].outcome == "fail"
    assert baseline_verdicts({"kl": broken}, {"kl": around(1.0, 0.1)}, path="run")[0].outcome == "unknown"


@pytest.mark.slow
def test_equal_runs_seldom_fail_and_worse_ones_often_do() -> None:
    """Six metrics on 40 paired prompts: shares of equal runs, and of runs whose hard prompts are lost, that fail."""
    failed = {0.0: 0, 0.6: 0}
    for lost in failed:
        for trial in range(150):
            rng = np.random.default_rng(trial)
            rates = rng.beta(0.5, 0.5, 40)
            sides = [
                {
                    name: BaselineMetric(
                        estimate=Estimate.exact(0.5),
                        prompts={str(place): float(value) for place, value in enumerate(rng.binomial(8, kept) / 8)},
                    )
                    for name in ("pass_rate", *(f"pass_rate@first{number}" for number in range(10, 15)))
                }
                for kept in (rates, rates * (1 - lost))
            ]
            failed[lost] += any(one.outcome == "fail" for one in baseline_verdicts(*sides, path="run"))
    assert failed[0.0] <= 0.05 * 150
    assert failed[0.6] >= 0.9 * 150
