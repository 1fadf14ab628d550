"""Requirements on some steps, and on a baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check.measure import check_run
from gradscope.diagnostics.check.metric_values import MetricValues
from gradscope.diagnostics.check.requirements import read_settings
from gradscope.diagnostics.check.step_selectors import Selector, split_metric
from gradscope.errors import UsageError
from tests.diagnostics.made_up_runs import group_of, run_of


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ("all", (2, 4, 6, 8, 10)),
        ("4-8", (4, 6, 8)),
        ("first2", (2, 4)),
        ("last3", (6, 8, 10)),
        ("first20%", (2,)),
        ("last30%", (8, 10)),
        ("last0", ()),
    ],
)
def test_steps_that_a_selector_means(steps: str, chosen: tuple[int, ...]) -> None:
    assert Selector(steps=steps, aggregate="mean").choose((2, 4, 6, 8, 10)) == chosen


@pytest.mark.parametrize("name", [*CATALOG, "pass@8", "val/mean@8", "x@", "@max", "x@last20%:median", "x@5"])
def test_what_is_no_selector_belongs_to_the_name(name: str) -> None:
    assert split_metric(name) == (name, None)


METRICS = {step: {"kl": float(step)} for step in range(1, 6)}
RUN = run_of(
    *(group_of(rewards, step=step, prompt=f"{step}-{name}") for step in range(1, 6) for name, rewards in {
        "dead": (1, 1), "other": (1, 1) if step > 3 else (1, 0)
    }.items()),
    metrics=METRICS,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kl@last2", 4.5),
        ("kl@max", 5.0),
        ("kl@2-4:min", 2.0),
        ("kl@first3:last", 3.0),
        ("kl@trend", 4.0),
        ("frac_reward_zero_std@1-3", 0.5),
        ("frac_reward_zero_std@last40%", 1.0),
        ("frac_reward_zero_std@min", 0.5),
        ("frac_reward_zero_std@trend", 0.6),
    ],
)
def test_numbers_of_some_steps(name: str, value: float) -> None:
    assert MetricValues(run=RUN).value(name).estimate.value == pytest.approx(value)


def test_a_mean_over_steps_has_the_interval_of_their_rollouts() -> None:
    value = MetricValues(run=RUN).value("frac_reward_zero_std@1-3")
    assert value.estimate.low is not None
    assert value.subject == "frac_reward_zero_std of 6 groups in steps 1 to 3"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pass@8@last20%", "pass@8 is not a number of each step"),
        ("effective_rank@max", "effective_rank is not a number of each step"),
        ("kl@10-20", "none of the steps '10-20' has a value"),
        ("kl@first2:trend", "a trend needs three steps, there are 2"),
    ],
)
def test_what_steps_cannot_say_is_undefined(name: str, reason: str) -> None:
    assert MetricValues(run=RUN).value(name).estimate.undefined == reason


def test_a_mistyped_selector_is_explained(log: Path) -> None:
    with pytest.raises(UsageError, match="There is no metric 'pass_rate@lst20%'") as caught:
        check_run(log, requirements=["pass_rate@lst20% > 0"])
    assert "metric@last20%" in str(caught.value.hint)


def write_log(path: Path, rewards_of: dict[str, list[int]]) -> Path:
    rows = [
        {"prompt_id": prompt, "step": 1, "reward": reward}
        for prompt, rewards in rewards_of.items()
        for reward in rewards
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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


def test_allowing_the_unknown_never_allows_a_failure(log: Path) -> None:
    report = check_run(log, requirements=["pass_rate > 1"], allow_unknown=["pass_rate"])
    assert report.outcome == "fail"


@pytest.mark.parametrize("options", [{"update_baseline": True}, {"track": ["pass_rate"]}])
def test_a_baseline_needs_a_file(log: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="A baseline is asked for, and no file is named"):
        check_run(log, requirements=["pass_rate > 0"], **options)


def test_settings_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "gradscope.toml").write_text(
        '[check]\nrequire = ["pass@1 > 0"]\ntrack = ["pass@8"]\nallow_unknown = ["pass@8"]\n'
        'baseline = "base.json"\nrule = "value"\nmargins = { "pass@8" = 0.02 }\n'
    )
    settings = read_settings(tmp_path / "gradscope.toml")
    assert (settings.track, settings.allow_unknown, settings.rule) == (("pass@8",), ("pass@8",), "value")
    assert settings.baseline == tmp_path / "base.json"
    assert settings.margins == {"pass@8": 0.02}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("requires = []", "sets 'requires', which check does not know"),
        ("baseline = 1", "`baseline` in .* is not a path"),
        ("rule = 'mean'", "`rule` in .* is 'mean'"),
        ("margins = { x = -1 }", "`margins` in .* is not a table of numbers from 0 on"),
        ("track = 'x'", "`track` in .* is not a list of strings"),
    ],
)
def test_settings_that_do_not_read_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "gradscope.toml").write_text(f"[check]\n{line}\n")
    with pytest.raises(UsageError, match=message):
        read_settings(tmp_path / "gradscope.toml")
