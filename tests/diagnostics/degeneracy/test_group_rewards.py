import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from gradscope.diagnostics.check.measure import check_run
from gradscope.diagnostics.degeneracy import group_rewards as module
from gradscope.diagnostics.degeneracy.group_rewards import (
    By,
    DegeneracyOptions,
    EstimateCache,
    degeneracy_by_step,
    group_rewards,
)
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run, measure_degeneracy
from gradscope.diagnostics.degeneracy.reward_functions import judged_groups
from gradscope.diagnostics.logged.metrics import NO_ROLLOUTS
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import DegeneracyEstimates, GroupTable
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.render.registry import render_table
from gradscope.results.degeneracy import BehindFilter, DegeneracyCourse, StepDegeneracy
from gradscope.results.source import Quarantine, QuarantineReason
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run import Run, TrainerSettings
from tests.conftest import LOGS
from tests.diagnostics.made_up_runs import findings_of, group_of, run_of, two_steps
from tests.render.printing import printed


def test_one_reward_function_is_judged_alone_where_its_name_is_right() -> None:
    functions = {"accuracy": [1.0, 1.0], "format": [0.0, 1.0]}
    run = run_of(group_of([1.0, 1.1], step=1, functions=functions), metrics={1: {"frac_reward_zero_std": 0.0}})
    assert degeneracy_of_run(run).frac_reward_zero_std.value == 0.0
    accuracy = degeneracy_of_run(run, reward="accuracy")
    assert (accuracy.reward, accuracy.frac_all_pass.value, accuracy.by_step[0].logged) == ("accuracy", 1.0, None)
    run = run_of(group_of([1, 1], functions={"accuracy_reward": [1, 1]}))
    with pytest.raises(UsageError, match="has no reward function 'acuracy_reward'") as caught:
        degeneracy_of_run(run, reward="acuracy_reward")
    assert caught.value.hint == "Did you mean 'accuracy_reward'?"
    with pytest.raises(UsageError, match="has no reward function 'x'") as caught:
        degeneracy_of_run(run_of(group_of([1, 1])), reward="x")
    assert caught.value.hint == "It logs no reward per function."


def test_groups_that_cannot_be_judged_are_left_out_and_counted() -> None:
    run = run_of(group_of([1, 1]), group_of([0, None]), group_of([1]), group_of([0, 1]))
    report = degeneracy_of_run(run)
    assert (report.num_groups, report.frac_reward_zero_std.value) == (2, 0.5)
    assert "Groups left out: 1 with a single rollout and 1 with a missing reward." in report.findings
    words = "has no group to judge: of 2 groups, 1 have one rollout and 1 lack a reward"
    with pytest.raises(InputError, match=words) as caught:
        degeneracy_of_run(run_of(group_of([1]), group_of([None, 1])))
    assert "Of one sample each: gradscope passk " in str(caught.value.hint)
    reason = QuarantineReason(reason="no number", num_rows=1, first="a:1")
    run = run_of(group_of([None, 1]))
    run = replace(run, source=replace(run.source, quarantined=Quarantine(num_rows=1, reasons=(reason,))))
    with pytest.raises(InputError, match=r"1 lack a reward\. 1 row set aside: no number\."):
        degeneracy_of_run(run)


@pytest.mark.parametrize(("version", "num_groups", "share"), [("1.16.0", 4, 0.5), ("1.5.0", 2, 0.5), (None, 2, 0.5)])
def test_trl_judges_a_group_by_its_scored_rollouts(version: str | None, num_groups: int, share: float) -> None:
    """TRL's ``nanstd`` of four groups; of one that has a single reward it is NaN, and not taken for zero."""
    groups = [[1, 1, 1], [0, 1, 1], [1, None, 1], [0, None, 1], [1, None, None]]
    run = run_of(*(group_of(rewards, step=1, prompt=str(number)) for number, rewards in enumerate(groups)))
    settings = TrainerSettings(values={"trl_version": version})
    run = replace(run, source=replace(run.source, format="trl"), settings=settings)
    report = degeneracy_of_run(run)
    assert (report.num_groups, report.frac_reward_zero_std.value) == (num_groups, share)
    assert group_rewards(run).num_incomplete == 5 - num_groups
    assert np.isfinite(group_rewards(run).values).all()


def test_levels_are_the_different_rewards_of_a_log_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscope.diagnostics.degeneracy.group_rewards._CHUNK", 2)
    chosen = group_rewards(run_of(group_of([0.5, 0.0, 1.0], prompt="p"), group_of([1.0, 0.0], prompt="q")))
    assert chosen.levels.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("by", ["step", "window"])
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_the_course_is_that_of_the_rows_with_intervals(by: By, threshold: float | None) -> None:
    rng = np.random.default_rng(0)
    groups = [
        group_of(list(rng.choice([0.0, 0.5, 1.0], 1 + index % 4, p=[0.6, 0.1, 0.3])), step=index % 23)
        for index in range(200)
    ]
    report = degeneracy_of_run(
        run_of(*groups, metrics={3: {"frac_reward_zero_std": 0.5}}),
        success_threshold=threshold,
        options=DegeneracyOptions(by=by),
    )
    series, rows = (
        {name: list(values) for name, values in asdict(record).items()}
        for record in (report.course, DegeneracyCourse.of(report.by_step))
    )
    shares = ["frac_reward_zero_std", "frac_all_pass", "frac_all_fail", "frac_tied", "pass_rate"]
    for name in shares if threshold else ("frac_reward_zero_std", "frac_tied"):
        assert series.pop(name) == pytest.approx(rows.pop(name))
    assert series == rows
    assert report.course.is_windows == (by == "window")


def test_an_answer_of_a_screen_resamples_no_step_and_fits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "group_rewards.degeneracy_by_step breakdowns.measure_advantage_mass dispersion_test estimate_gap_parts"
    for name in names.split():
        monkeypatch.setattr(f"gradscope.diagnostics.degeneracy.measure.{name}", None)
    report = degeneracy_of_run(two_steps())
    with monkeypatch.context() as fitting:
        fitting.setattr("gradscope.diagnostics.degeneracy.measure.fit_pass_rates", None)
        assert "groups" in printed(render_table(report))
    with pytest.raises(TypeError, match="NoneType"):
        report.by_step  # noqa: B018


def test_a_logged_share_is_compared_with_ours_on_the_same_rollouts() -> None:
    metrics = {1: {"frac_reward_zero_std": 1.0}, 2: {"frac_reward_zero_std": 0.0}}
    report = degeneracy_of_run(two_steps(metrics=metrics))
    assert [row.logged for row in report.by_step] == [1.0, 0.0]
    report = degeneracy_of_run(two_steps(metrics=metrics, notes={2: "a logging window of 3 steps"}))
    assert [row.logged for row in report.by_step] == [1.0, None]


def test_windows_pool_neighboring_steps_and_are_not_compared_with_a_logged_step() -> None:
    groups = [group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in range(1, 26)]
    by_window = degeneracy_of_run(run_of(*groups), options=DegeneracyOptions(by="window")).by_step
    assert [(row.step, row.last_step) for row in by_window][:3] == [(1, 3), (4, 6), (7, 9)]
    assert by_window[-1].last_step == 25
    assert len(by_window) == 10
    assert sum(row.num_groups for row in by_window) == 25
    assert by_window[0].frac_reward_zero_std.value == pytest.approx(2 / 3)  # steps 1 and 3 of 1, 2, 3
    groups = [group_of([1.0, 0.0], step=step, prompt=f"p{step}") for step in range(1, 22)]
    run = run_of(*groups, metrics={step: {"frac_reward_zero_std": 0.0} for step in range(1, 22)})
    assert all(row.logged == 0.0 for row in degeneracy_of_run(run).by_step)
    windows = degeneracy_of_run(run, options=DegeneracyOptions(by="window")).by_step
    assert [row.logged for row in windows if row.step != row.last_step] == [None] * len(windows)
    groups = [group_of([1.0, 0.0], step=step, prompt=f"p{step}") for step in (1, 2)]
    by_window = degeneracy_of_run(run_of(*groups), options=DegeneracyOptions(by="window")).by_step
    assert [(row.step, row.last_step) for row in by_window] == [(1, 1), (2, 2)]


def by_step(run: Run, cache: EstimateCache | None = None) -> tuple[StepDegeneracy, ...]:
    return degeneracy_by_step(run, judged_groups(run)[1], None, DegeneracyOptions(), cache)


def test_a_step_whose_groups_are_known_is_not_estimated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated: list[int] = []
    original = DegeneracyOptions.estimates

    def spy(self: DegeneracyOptions, tables: Sequence[GroupTable]) -> list[DegeneracyEstimates]:
        estimated.extend(int(table.step[0]) for table in tables)
        return original(self, tables)

    monkeypatch.setattr(DegeneracyOptions, "estimates", spy)
    defined: EstimateCache = {}
    groups = [group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in (1, 2)]
    first = by_step(run_of(*groups), defined)
    second = by_step(run_of(*groups, group_of([0.0, 1.0], step=2, prompt="p3")), defined)
    assert estimated == [1, 2, 2]
    assert second[0] == first[0]
    assert second[1].num_groups == 2


def test_steps_are_those_of_the_log_however_many_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*(group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in range(1, 8)))
    full = by_step(run)
    monkeypatch.setattr(module, "_STEP_CHUNK", 3)
    assert by_step(run) == full
    assert [row.step for row in full] == list(range(1, 8))


@pytest.mark.parametrize(("field", "value"), [("by", "epoch"), ("base_pass_rate", "steps")])
def test_a_word_that_is_no_option_is_refused(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"There is no {field}='{value}'"):
        DegeneracyOptions(**{field: value})


def metrics_alone(shares: dict[int, float], **fields: float) -> Run:
    run = run_of(metrics={step: {"frac_reward_zero_std": share, **fields} for step, share in shares.items()})
    return replace(run, source=replace(run.source, kind="metrics", missing=("log rollouts",)))


def test_shares_are_as_logged_without_an_interval() -> None:
    report = degeneracy_of_run(metrics_alone({1: 0.5, 2: 1.0}, frac_all_pass=0.25))
    long = degeneracy_of_run(metrics_alone({2_000: 0.5, 14_000: 1.0}))
    assert "steps 2000 to 14000" in printed(render_table(long))
    assert (report.frac_reward_zero_std, report.frac_all_pass.value) == (Estimate.exact(0.75, num_units=2), 0.25)
    rows = [(row.step, row.frac_reward_zero_std.value, row.frac_all_pass.value) for row in report.by_step]
    assert rows == [(1, 0.5, 0.25), (2, 1.0, 0.25)]
    assert all(row.frac_reward_zero_std.interval is None for row in report.by_step)
    assert (list(report.course.frac_all_pass), list(report.course.frac_all_fail)) == ([0.25, 0.25], [None, None])
    assert report.findings[0].startswith("75.0 % of a step's groups gave no gradient")
    assert [metric.name for metric in report.metrics] == ["frac_reward_zero_std", "frac_all_pass"]


def test_what_needs_rollouts_is_undefined_with_that_reason() -> None:
    options = DegeneracyOptions(target_degeneracy=0.2)
    report = degeneracy_of_run(metrics_alone({1: 0.5}), group_sizes=[4], options=options)
    skipped = {"frac_reward_zero_std", "frac_set_aside"}
    estimates = [
        value
        for record in (report, report.starvation, report.pass_rates, report.gap_decomposition, report.by_group_size[0])
        for name in record.__struct_fields__
        if isinstance(value := getattr(record, name), Estimate) and name not in skipped
    ]
    assert len(estimates) > 20
    assert {value.undefined for value in estimates} == {NO_ROLLOUTS}
    assert (report.num_groups, report.num_rollouts, report.by_group_size[0].group_size) == (0, 0, 4)
    assert (report.prompts.live, report.prompts.frac_rollouts) == (0, 0.0)
    assert report.target.plans == ()


def test_windows_join_neighbors_and_a_nan_stays_one() -> None:
    run = metrics_alone({step: step / 20 for step in range(1, 21)})
    report = degeneracy_of_run(run, options=DegeneracyOptions(by="window"))
    assert [(row.step, row.last_step) for row in report.by_step[:2]] == [(1, 2), (3, 4)]
    assert report.by_step[0].frac_reward_zero_std.value == pytest.approx(0.075)
    broken = degeneracy_of_run(metrics_alone({1: 0.5, 2: math.nan}))
    assert broken.by_step[1].frac_reward_zero_std.undefined == "the trainer logged NaN"
    assert broken.frac_reward_zero_std.undefined == "the trainer logged NaN at step 2"


def test_metrics_without_the_share_say_so() -> None:
    run = metrics_alone({1: 0.5})
    report = degeneracy_of_run(replace(run, metrics={1: {"loss": 0.5}}))
    assert report.frac_reward_zero_std.undefined == f"{NO_ROLLOUTS}, and none of these is that share"
    assert report.by_step == ()
    assert report.findings[0].startswith("These metrics do not tell")
    with pytest.raises(InputError, match="no share of groups by reward function") as caught:
        degeneracy_of_run(run, reward="format")
    assert caught.value.hint == "log rollouts"


EVICTED = "training/filter_groups/evicted_samples"
SURPLUS = "training/filter_groups/discarded_surplus_samples"
ALL_FAIL, ALL_PASS = "rollout/dynamic_filter/drop_zero_std_0.0", "rollout/dynamic_filter/drop_zero_std_1.0"


def test_a_share_of_dead_batches_is_none_of_groups(tmp_path: Path) -> None:
    log, arguments = tmp_path / "metrics.jsonl", tmp_path / "args.json"
    log.write_text("".join(f'{{"step": {step}, "frac_reward_zero_std": 0.0, "reward": 0.5}}\n' for step in range(1, 4)))
    arguments.write_text('{"scale_rewards": "batch"}')
    report = measure_degeneracy(log, read=ReadOptions(trainer_args=arguments))
    assert report.frac_reward_zero_std.value is None
    assert "of whole batches" in " ".join(report.source.inferred)
    assert measure_degeneracy(log).frac_reward_zero_std.value == 0.0


def logged(format: str, metrics: Mapping[int, Mapping[str, float]]) -> Run:
    """Two steps of four groups each, one of them dead, as a trainer's filter left them."""
    groups = [
        group_of([1, 1] if prompt == 0 else [0, 1], step=step, prompt=f"p{prompt}", functions={"right": [1, 1]})
        for step in (1, 2)
        for prompt in range(4)
    ]
    run = run_of(*groups, metrics=metrics)
    return replace(run, source=replace(run.source, format=format))


def filtered(format: str, metrics: Mapping[int, Mapping[str, float]], reward: str | None = None) -> BehindFilter:
    return degeneracy_of_run(logged(format, metrics), reward=reward).behind_filter


def test_the_interval_behind_a_filter_is_that_of_the_options_resampling() -> None:
    metrics = {step: {"num_sampled_groups": 9.0, "num_sampled_degenerate_groups": 1.0 + step % 5} for step in range(12)}
    groups = [group_of([prompt, 1], step=step, prompt=f"p{prompt}") for step in metrics for prompt in (0, 1)]
    run = run_of(*groups, metrics=metrics)
    run = replace(run, source=replace(run.source, format="gradscope"))
    intervals = [
        degeneracy_of_run(
            run, options=DegeneracyOptions(resampling=Resampling(num_resamples=200, seed=seed))
        ).behind_filter.frac_zero_std_sampled.interval
        for seed in (0, 0, 1)
    ]
    assert intervals[0] == intervals[1] != intervals[2]


@pytest.mark.parametrize(
    ("format", "metrics", "sampled", "dead"),
    [
        ("verl", {1: {EVICTED: 6.0, SURPLUS: 2.0}, 2: {"actor/grad_norm": 1.0}}, [12, 4], [7, 1]),
        ("verl", {1: {EVICTED: 6.0}, 2: {EVICTED: 1.0, "training/off_policy/evicted_samples": 0.0}}, [10, 5], [7, 2]),
        ("slime", {1: {ALL_FAIL: 3.0, ALL_PASS: 2.0}, 2: {"rollout/reward": 0.5}}, [9, 4], [6, 1]),
        (
            "open-instruct",
            {step: {"batch/filtered_prompts": 12.0, "batch/total_prompts": 4.0} for step in (1, 2)},
            [16, 16],
            [13, 13],
        ),
        (
            "gradscope",
            {step: {"num_sampled_groups": 9.0, "num_sampled_degenerate_groups": 5.0} for step in (1, 2)},
            [9, 9],
            [5, 5],
        ),
    ],
)
def test_each_trainers_counters_give_the_share_at_each_step_and_overall(
    format: str, metrics: Mapping[int, Mapping[str, float]], sampled: list[int], dead: list[int]
) -> None:
    behind = filtered(format, metrics)
    counts = [(row.step, row.num_sampled, row.num_dead) for row in behind.by_step]
    assert counts == list(zip((1, 2), sampled, dead, strict=True))
    shares = [row.frac_zero_std_sampled.value for row in behind.by_step]
    assert shares == [lost / total for lost, total in zip(dead, sampled, strict=True)]
    assert behind.frac_zero_std_sampled.value == pytest.approx(sum(dead) / sum(sampled))
    assert (behind.num_sampled, behind.num_dead) == (sum(sampled), sum(dead))
    assert behind.frac_zero_std_sampled.num_units == 2


@pytest.mark.parametrize(
    ("format", "metrics", "reason"),
    [
        ("verl", {1: {"actor/grad_norm": 1.0}}, module.NO_COUNTER),
        ("trl", {1: {EVICTED: 6.0}}, module.NO_COUNTER),
        ("verl", {7: {EVICTED: 6.0}}, module.NO_LINE),
        ("verl", {1: {EVICTED: 6.0, "training/off_policy/evicted_samples": 1.0}}, module.STALE),
        ("verl", {1: {EVICTED: 6.5}}, module.NOT_AN_INTEGER),
        ("verl", {1: {EVICTED: float("nan")}}, module.NOT_AN_INTEGER),
        ("slime", {1: {ALL_FAIL: 1.0, "rollout/dynamic_filter/drop_too_long": 1.0}}, module.ANOTHER_FILTER),
        ("slime", {2: {ALL_FAIL: 1.0}, 4: {ALL_FAIL: 1.0}}, module.OTHER_STEPS),
        ("open-instruct", {1: {"batch/filtered_prompts": 1.0, "batch/total_prompts": 5.0}}, module.LOG_INCOMPLETE),
        ("gradscope", {1: {"num_sampled_groups": 3.0, "num_sampled_degenerate_groups": 1.0}}, module.LOG_INCOMPLETE),
        ("open-instruct", {1: {"scores": 1.0}, 3: {"batch/filtered_prompts": 1.0}}, module.NO_LINE),
    ],
)
def test_missing_counters_are_undefined(format: str, metrics: Mapping[int, Mapping[str, float]], reason: str) -> None:
    behind = filtered(format, metrics)
    assert behind.frac_zero_std_sampled.undefined == reason
    assert (behind.num_sampled, behind.num_dead) == (None, None)
    assert bool(behind.by_step) == (reason not in (module.NO_COUNTER, module.OTHER_STEPS))
    assert "Behind the filter" not in findings_of(degeneracy_of_run(logged(format, metrics)))


def test_a_step_without_counters_is_left_out_and_reported() -> None:
    run = logged("verl", {1: {EVICTED: 6.0}, 2: {"training/off_policy/evicted_samples": 1.0}})
    report = degeneracy_of_run(run)
    assert report.behind_filter.by_step[1].frac_zero_std_sampled.undefined == module.STALE
    assert (
        "Behind the filter: of 10 groups that were sampled 7 (70.0 %) gave no gradient, by the log's count of dropped "
        "groups, at the 1 of 2 steps that tell; the 25.0 % above is of those that were kept."
    ) in findings_of(report)
    behind = filtered("verl", {1: {EVICTED: 6.0}}, reward="right")
    assert behind.frac_zero_std_sampled.undefined == module.NOT_THE_REWARD


@pytest.mark.slow
def test_the_interval_is_over_steps_and_holds_the_share_of_the_policy() -> None:
    """A filter at work: groups die with probability 0.7 and are drawn until six live ones are kept."""
    held = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        dropped = rng.negative_binomial(6, 0.3, size=30)
        groups = [group_of([0, 1], step=step, prompt=f"{step}-{index}") for step in range(30) for index in range(6)]
        run = run_of(*groups, metrics={step: {EVICTED: float(number)} for step, number in enumerate(dropped)})
        share = degeneracy_of_run(replace(run, source=replace(run.source, format="verl"))).behind_filter
        low, high = share.frac_zero_std_sampled.ends
        assert 0 <= low < high <= 1
        held.append(low <= 0.7 <= high)
    assert sum(held) >= 34


def test_a_log_of_verl_on_disk(tmp_path: Path) -> None:
    log = shutil.copytree(LOGS / "verl_metrics", tmp_path / "log")
    assert measure_degeneracy(log).behind_filter.frac_zero_std_sampled.undefined == module.NO_COUNTER
    line = {"step": 1, "data": {"actor/grad_norm": 0.25, EVICTED: 2}}
    (log / "experiment.jsonl").write_text(json.dumps(line) + "\n")
    report = measure_degeneracy(log)
    assert report.frac_reward_zero_std.value == 0.5
    assert report.behind_filter.frac_zero_std_sampled.value == 0.75
    checked = check_run(log, requirements=["frac_zero_std_sampled <= 0.5"])
    assert checked.verdicts[0].estimate.value == 0.75
    assert checked.outcome == "fail"
