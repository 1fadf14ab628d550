import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.check.baseline import (
    MAX_PROMPTS,
    _difference,
    baseline_verdicts,
    read_baseline,
    recipe_findings,
    recipe_of,
    write_baseline,
)
from gradscope.diagnostics.check.measure import check_run
from gradscope.diagnostics.check.requirements import CheckSettings
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import RESAMPLING
from gradscope.results.verdicts import Baseline, BaselineMetric, Verdict
from tests.diagnostics.check.test_measure import write_log
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.rollouts.readers.lines import write_lines


def metric(value: float, half: float = 0.1, prompts: dict[str, float] | None = None) -> BaselineMetric:
    estimate = Estimate(value=value, low=value - half, high=value + half, num_units=50)
    return BaselineMetric(estimate=estimate, prompts=prompts or {})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Twenty prompts: every second group is dead."""
    return write_log(tmp_path / "log.jsonl", {f"p{n}": [1, n % 2, 1, 1] for n in range(20)})


@pytest.mark.parametrize("track", [[], ["pass_rate"]])
def test_a_baseline_needs_a_file(log: Path, track: list[str]) -> None:
    with pytest.raises(UsageError, match="A baseline is asked for, and no file is named"):
        check_run(log, CheckSettings(track=track), requirements=["pass_rate > 0"], update_baseline=not track)


def test_a_baseline_is_read_as_written_but_for_too_many_prompts(tmp_path: Path) -> None:
    many = {f"{number:012x}": 0.5 for number in range(MAX_PROMPTS + 1)}
    by_step = BaselineMetric(estimate=Estimate.exact(1.0), course={3: 0.5, 12: 1.5}, deviations={3: -0.5})
    metrics = {"pass@8": metric(0.5, prompts={"ab": 0.25}), "grad_norm": metric(1.0), "kl@mean": by_step}
    path = tmp_path / "ci" / "baseline.json"
    write_baseline(Baseline(run="a run", metrics=metrics | {"x": metric(0.5, prompts=many)}), path)
    assert read_baseline(path) == Baseline(run="a run", metrics=metrics | {"x": metric(0.5)})
    assert [file.name for file in path.parent.iterdir()] == ["baseline.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"b\.json cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[]", "is no baseline of version 1"),
        ('{"schema": "gradscope/baseline", "schema_version": 2}', "is no baseline of version 1"),
        ('{"schema": "gradscope/baseline", "schema_version": 1}', "is damaged: KeyError 'metrics'"),
        ('{"schema": "gradscope/baseline", "schema_version": 1, "run": "r", "metrics": {"x": 1}}', "is damaged"),
        (
            '{"schema": "gradscope/baseline", "schema_version": 1, "run": "r", "metrics": {"x": {"value": %s, '
            '"low": null, "high": null, "num_units": 1, "undefined": null, "prompts": {}}}}' % ("9" * 400),
            "is damaged: .* is no finite number",
        ),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "b.json").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_baseline(tmp_path / "b.json")
    assert "--update-baseline" in str(caught.value.hint)


def test_a_change_adds_intervals_in_squares_where_both_sides_have_one() -> None:
    change, paired, _ = _difference("kl", metric(0.5, 0.3), metric(0.6, 0.4), RESAMPLING)
    assert len(paired) == 0
    assert change.value == pytest.approx(0.1)
    assert change.high - change.value == pytest.approx(math.hypot(0.3, 0.4))
    first, two = (BaselineMetric(estimate=Estimate.exact(value)) for value in (1.0, 3.0))
    assert _difference("kl", first, two, RESAMPLING)[0] == Estimate.exact(2.0)
    for sides in ((metric(1.0), two), (first, metric(3.0))):
        assert _difference("kl", *sides, RESAMPLING)[0] == Estimate.exact(2.0)


def test_pairs_take_the_difficulty_of_prompts_out() -> None:
    rng = np.random.default_rng(0)
    hard = {f"{number:012x}": float(rng.random()) for number in range(60)}
    easier = {name: value + 0.01 + 0.002 * float(rng.normal()) for name, value in hard.items()}
    change, paired, _ = _difference("pass_rate", metric(0.5, 0.1, hard), metric(0.51, 0.1, easier), RESAMPLING)
    assert len(paired) == 60
    assert 0 < change.low < 0.01 < change.high < 0.02
    first = {f"a{number}": 0.0 for number in range(20)}
    second = {**{f"b{number}": 1.0 for number in range(14)}, **{f"a{number}": 0.0 for number in range(6)}}
    _, few, _ = _difference("pass_rate", metric(0.0, 0.1, first), metric(0.7, 0.1, second), RESAMPLING)
    assert len(few) == 0  # too few in common


def wandering(seed: int, drop: float = 0.0) -> list[dict[str, object]]:
    """Rows of 40 steps of eight prompts whose policy's log-odds wander, with its chance of passing this much lower."""
    rng, drift = np.random.default_rng(seed), 0.0
    rows: list[dict[str, object]] = []
    for step in range(40):
        drift = 0.9 * drift + 0.4 * 0.19**0.5 * rng.normal()
        for prompt in range(8):
            rate = 1 / (1 + np.exp(-(prompt - 3.5) / 2 - drift)) - drop
            passed = (rng.random(8) < rate).astype(int).tolist()
            rows += [{"prompt_id": f"p{prompt}", "step": step, "reward": reward} for reward in passed]
    return rows


@pytest.mark.slow
def test_a_policy_that_wanders_seldom_fails_beside_its_own_recipe(tmp_path: Path) -> None:
    """Half of such pairs failed by the chance of prompts and samples alone."""
    failed = {0.0: 0, 0.4: 0}
    for drop in failed:
        for seed in range(6):
            first = write_lines(tmp_path / "first.jsonl", *wandering(2 * seed))
            second = write_lines(tmp_path / "second.jsonl", *wandering(2 * seed + 1, drop))
            settings = CheckSettings(track=["pass_rate"], baseline=tmp_path / "b.json")
            check_run(first, settings, update_baseline=True, force=True)
            (verdict,) = check_run(second, settings).verdicts
            failed[drop] += verdict.outcome == "fail"
            assert "by the chance of prompts, samples and steps alone" in verdict.meaning
            assert "prompts of both, each counted once" in verdict.meaning
    assert failed[0.0] <= 1
    assert failed[0.4] >= 4


@pytest.mark.parametrize(("aggregate", "outcome"), [("mean", "fail"), ("trend", "pass")])
def test_metrics_of_the_same_steps_are_compared_step_by_step(aggregate: str, outcome: str, tmp_path: Path) -> None:
    """A reward that is lower all along a learning curve is another reward with the same trend."""
    rng, paths = np.random.default_rng(0), []
    for drop in (0.0, 0.05):
        rewards = [0.2 + 0.5 * math.tanh(step / 20) - drop + 0.01 * rng.normal() for step in range(60)]
        rows = ({"step": step, "reward": reward} for step, reward in enumerate(rewards))
        paths.append(write_lines(tmp_path / f"metrics{drop}.jsonl", *rows))
    settings = CheckSettings(track=[f"reward@{aggregate}"], baseline=tmp_path / "b.json")
    check_run(paths[0], settings, update_baseline=True)
    (verdict,) = check_run(paths[1], settings).verdicts
    assert verdict.outcome == outcome
    assert "step by step over 60 steps" in verdict.meaning


def test_of_single_policies_another_seed_is_not_in_the_chance(tmp_path: Path) -> None:
    rows = [{"task_id": f"t{number}", "n": 8, "c": number % 8} for number in range(40)]
    log = write_lines(tmp_path / "samples.jsonl", *rows)
    settings = CheckSettings(track=["pass@1"], baseline=tmp_path / "b.json")
    check_run(log, settings, update_baseline=True)
    (verdict,) = check_run(log, settings).verdicts
    assert "How much another seed would change is not in it: a margin allows for that." in verdict.meaning


@pytest.fixture
def baseline(log: Path, tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    settings = CheckSettings(requirements=["frac_reward_zero_std <= 1"], baseline=path)
    assert len(check_run(log, settings, update_baseline=True).verdicts) == 1
    return path


def test_a_run_passes_its_own_baseline_and_a_starved_one_fails(log: Path, baseline: Path, tmp_path: Path) -> None:
    settings = CheckSettings(track=["frac_reward_zero_std"], baseline=baseline)
    report = check_run(log, settings)
    (verdict,) = report.verdicts
    assert report.outcome == "pass"
    assert (verdict.change.change.value, verdict.change.num_paired) == (0.0, 20)
    dead = {f"p{n}": [1, 1, 1, 1] if n % 2 or n < 16 else [1, 0, 1, 1] for n in range(20)}
    report = check_run(write_log(tmp_path / "starved.jsonl", dead), settings)
    (verdict,) = report.verdicts
    assert report.outcome == "fail"
    assert "was 0.5 in the baseline and is 0.9; the change is +0.4 [" in verdict.meaning
    assert "on the 20 prompts of both, each counted once; " in verdict.meaning
    assert "gradscope degeneracy" in verdict.next_step
    # what the baseline lacks is unknown unless allowed
    report = check_run(log, CheckSettings(track=["pass_rate"], baseline=baseline))
    assert report.outcome == "unknown"
    assert report.verdicts[0].next_step == "Write the baseline again from a good run: --update-baseline --force"
    allowed = check_run(log, CheckSettings(track=["pass_rate"], baseline=baseline, allow_unknown=["pass_rate"]))
    assert (allowed.outcome, allowed.verdicts[0].outcome, allowed.verdicts[0].allowed) == ("pass", "unknown", True)


def judged(name: str, change: float, half: float = 0.1, margin: float = 0.1, rule: str = "interval") -> Verdict:
    """The verdict on one metric that was known exactly but for its interval, and has changed by so much."""
    before, after = metric(1.0, half / 2**0.5), metric(1.0 + change, half / 2**0.5)
    settings = CheckSettings(margins={name: margin}, rule=rule)
    (verdict,) = baseline_verdicts({name: before}, {name: after}, settings, path="run")
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
        ("reward@last20%", -0.21, "fail"),
        ("reward@last20%", 0.5, "pass"),
        ("val-core/gsm8k/acc/mean@1", 0.5, "pass"),
    ],
)
def test_a_single_metric_fails_by_the_near_end_of_its_interval(name: str, change: float, outcome: str) -> None:
    verdict = judged(name, change)
    assert verdict.outcome == outcome
    assert verdict.meaning.endswith("A change of less than 0.2 could not have failed.") == (outcome == "pass")


def test_the_more_metrics_the_farther_the_change_must_be() -> None:
    names = [f"metric{number}" for number in range(20)]
    before = {name: metric(1.0, 0.1) for name in names}
    after = {**before, "metric3": metric(1.3, 0.1)}
    single, together = (
        baseline_verdicts(before, {name: after[name] for name in chosen}, path="run") for chosen in (["metric3"], names)
    )
    assert (single[0].outcome, together[3].outcome) == ("fail", "fail")
    assert together[3].change.p_value == pytest.approx(20 * (single[0].change.p_value or 0.0))
    assert together[3].meaning.endswith("corrected for 20 metrics.")
    assert {verdict.outcome for verdict in together if verdict.metric != "metric3"} == {"pass"}


def test_a_number_without_an_interval_is_undecided_and_its_mean_is_advised() -> None:
    before, after = ({"kl": BaselineMetric(estimate=Estimate.exact(value))} for value in (0.5, 0.4))
    (verdict,) = baseline_verdicts(before, after, path="run")
    assert (verdict.outcome, verdict.change and verdict.change.p_value) == ("unknown", None)
    assert "How much of that is chance is not known" in verdict.meaning
    assert "such as kl@last20%" in verdict.next_step
    (unchanged,) = baseline_verdicts(before, before, path="run")
    assert (unchanged.outcome, unchanged.meaning[-1]) == ("pass", ".")
    for selector, advised in (
        ("5-20:max", "5-20:mean"),
        ("last20%", "last10"),
        ("5-20:last", "5-20:mean"),
        ("max", "last20%"),
    ):
        name = f"kl@{selector}"
        (verdict,) = baseline_verdicts({name: before["kl"]}, {name: after["kl"]}, path="run")
        assert f"such as kl@{advised}, " in verdict.next_step
        assert verdict.outcome == "unknown"


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
    # a side without a finite value decides nothing or fails
    defined = BaselineMetric(estimate=Estimate.exact(0.5))
    unknown = BaselineMetric(estimate=Estimate.undefined_because("no log"))
    (verdict,) = baseline_verdicts({"kl": defined}, {"kl": unknown}, path="run")
    assert (verdict.outcome, verdict.limit) == ("unknown", 0.5)
    assert verdict.meaning == "kl cannot be compared with the baseline: no log. What is not known does not pass."
    assert verdict.next_step == "Look at the trainer's own log of this metric, or at the requirement on it above."
    broken = BaselineMetric(estimate=Estimate.undefined_because("the trainer logged NaN at step 3"), is_not_finite=True)
    assert baseline_verdicts({"kl": metric(1.0, 0.1)}, {"kl": broken}, path="run")[0].outcome == "fail"
    assert baseline_verdicts({"kl": broken}, {"kl": metric(1.0, 0.1)}, path="run")[0].outcome == "unknown"


@pytest.mark.slow
def test_equal_runs_seldom_fail_and_worse_ones_often_do() -> None:
    """Six metrics on 40 paired prompts: shares of equal runs, and of runs whose hard prompts are lost, that fail."""
    failed = {0.0: 0, 0.6: 0}
    for lost in failed:
        for trial in range(20):
            rng = np.random.default_rng(trial)
            rates = rng.beta(0.5, 0.5, 40)
            sides = [
                {
                    name: BaselineMetric(
                        estimate=Estimate.exact(0.5),
                        prompts={str(n): float(value) for n, value in enumerate(rng.binomial(8, pass_rates) / 8)},
                    )
                    for name in ("pass_rate", *(f"pass_rate@first{number}" for number in range(10, 15)))
                }
                for pass_rates in (rates, rates * (1 - lost))
            ]
            failed[lost] += any(verdict.outcome == "fail" for verdict in baseline_verdicts(*sides, path="run"))
    assert failed[0.0] <= 0.05 * 20
    assert failed[0.6] >= 0.9 * 20


def graded(path: Path, *, size: int = 8, num_steps: int = 12, num_prompts: int = 4) -> Path:
    """Rollouts of a policy that stays, so many a prompt."""
    rng = np.random.default_rng(size + num_steps)
    return write_lines(
        path,
        *(
            {"step": step, "prompt_id": f"p{prompt}", "reward": float(rng.random() < 0.5)}
            for step in range(num_steps)
            for prompt in range(num_prompts)
            for _ in range(size)
        ),
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"num_steps": 14}, ""),
        ({"size": 4}, "rollouts a group 4, not 8"),
        ({"num_prompts": 8}, "groups a step 8, not 4"),
        ({"size": 16, "num_prompts": 2}, "rollouts a group 16, not 8; groups a step 2, not 4"),
    ],
)
def test_another_recipe_than_the_baselines_is_named(tmp_path: Path, changed: dict[str, int], words: str) -> None:
    """Groups of four in place of eight doubled the dead ones, and nothing said so."""
    settings = CheckSettings(track=["frac_reward_zero_std"], baseline=tmp_path / "b.json")
    check_run(graded(tmp_path / "a.jsonl"), settings, update_baseline=True)
    report = check_run(graded(tmp_path / "b.jsonl", **changed), settings)
    named = [f"Another recipe than the baseline's: {words}. That alone may change a number"] * bool(words)
    assert [finding.partition(": compare runs")[0] for finding in report.findings] == named


def test_settings_and_functions_of_another_recipe_are_named_and_older_baselines_hold_none() -> None:
    before = {"reward functions": "correct and format", "beta": "0.0", "lr": "1e-06", "a": "1", "b": "1", "c": "1"}
    after = {"reward functions": "correct", "beta": "0.04", "lr": "1e-06", "a": "2", "b": "2", "c": "2"}
    (finding,) = recipe_findings(before, after)
    assert (
        "recipe than the baseline's: reward functions correct, not correct and format; beta 0.04, not 0.0; a" in finding
    )
    assert "; b 2, not 1; 1 more. That alone" in finding
    assert list(recipe_findings({}, after)) == []
    run = run_of(
        group_of([1, 0], functions={"correct": [1, 0], "length": [0.1, 0.2]}),
        settings={"beta": 0.04, "output_dir": "x", "seed": 1, "reward_weights": [1, 1], "chat_template": "x" * 50},
    )
    assert recipe_of(run, CheckSettings(success_threshold=0.5)) == {
        "success threshold": "0.5",
        "rollouts a group": "2",
        "groups a step": "1",
        "reward functions": "correct and length",
        "rewards": "0 and 1",
        "beta": "0.04",
    }


def test_a_trend_of_few_steps_is_no_pass(tmp_path: Path) -> None:
    """No change of a share could have failed: its interval reached from -1 to 1."""
    settings = CheckSettings(track=["frac_reward_zero_std@trend"], baseline=tmp_path / "b.json")
    check_run(graded(tmp_path / "a.jsonl", num_steps=6), settings, update_baseline=True)
    other = graded(tmp_path / "b.jsonl", num_steps=7)
    (few,) = check_run(other, settings).verdicts
    assert (few.outcome, few.change and few.change.change.interval) == ("unknown", None)
    (within,) = check_run(other, replace(settings, margins={"frac_reward_zero_std@trend": 5.0})).verdicts
    assert within.outcome == "pass"
