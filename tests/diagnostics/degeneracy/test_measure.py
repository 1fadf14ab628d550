import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.diagnostics.degeneracy.measure import Pace, degeneracy_of_run, follow_degeneracy, measure_degeneracy
from gradscope.errors import InputError, UsageError
from gradscope.findings.degeneracy import dead_group_advice
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD
from gradscope.rollouts.readers.detect import read_run
from tests.diagnostics.made_up_runs import (
    beta_run,
    findings_of,
    group_of,
    humaneval,
    run_of,
    tau_bench,
    two_steps,
    with_fields,
    with_tokens,
)
from tests.rollouts.readers.lines import write_lines


def test_hand_worked_run() -> None:
    report = degeneracy_of_run(two_steps())
    assert (report.num_groups, report.num_rollouts, report.group_size, report.success_threshold) == (4, 16, 4, 1.0)
    assert report.frac_reward_zero_std.value == 0.75
    assert (report.frac_all_pass.value, report.frac_all_fail.value, report.frac_tied.value) == (0.25, 0.5, 0.0)
    assert report.pass_rate.value == 0.375
    assert report.iid_prediction.value == pytest.approx(0.375**4 + 0.625**4)
    assert report.jensen_gap.value == pytest.approx(0.75 - 0.375**4 - 0.625**4)
    assert report.relative_gap.value == pytest.approx(0.75 / (0.375**4 + 0.625**4) - 1)
    parts = report.gap_decomposition
    assert parts.between_prompts.undefined == parts.over_time.undefined
    reason = "groups of 4 rollouts need 5 different prompts to tell p^G without bias, the log has 4"
    assert parts.over_time.undefined == reason
    rows = [(row.step, row.num_groups, row.frac_reward_zero_std.value) for row in report.by_step]
    assert rows == [(1, 2, 1.0), (2, 2, 0.5)]
    assert report.pass_rate_origin == "the mean of this log over 4 groups"
    assert "3 of 4 groups (75.0 %" in findings_of(report)
    assert "1 all pass, 2 all fail" in findings_of(report)


def test_what_is_odd_of_advantages_and_ends_is_counted() -> None:
    groups = two_steps().groups
    zeroed = [with_fields(group, advantage=0.0, status=["truncated"] * 3 + ["completed"]) for group in groups]
    report = degeneracy_of_run(run_of(*zeroed, metrics={1: {"completions/clipped_ratio": 0.1}}))
    assert (report.num_zeroed, report.frac_cut_off) == (1, 0.75)
    report = degeneracy_of_run(run_of(*(with_fields(group, advantage=[0.0] * 3 + [0.1]) for group in groups)))
    assert (report.num_zeroed, report.frac_cut_off) == (0, 0.0)
    shares = {step: {"completions/clipped_ratio": share} for step, share in ((1, 0.5), (2, 1.0))}
    assert degeneracy_of_run(run_of(*groups, metrics=shares)).frac_cut_off == 0.75


@pytest.mark.parametrize(("advantages", "moves"), [((0.5, -0.5), True), ((0.0, 0.0), False), (None, False)])
def test_a_critic_moves_groups_of_equal_rewards(advantages: tuple[float, ...] | None, moves: bool) -> None:
    """The rollouts of groups that advantages of single tokens move were signal lost."""
    groups = [with_fields(group, token_advantages=advantages) for group in two_steps().groups]
    report = degeneracy_of_run(run_of(*groups))
    assert report.has_other_baseline is moves
    assert report.num_moved == moves * report.num_dead
    assert any("Signal lost" in sentence for sentence in report.findings) is not moves


@pytest.mark.parametrize(
    ("advantages", "num"),
    [
        ([0.5, -0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0], 1),  # of two groups, the second dead
        ([0.75, -0.25, 0.75, -0.25] + [-0.25] * 4, 0),
        ([0.0] * 8, 0),
        ([0.0, 0.0, 0.5, -0.5, -0.5, 0.5, 0.0, 0.0], 0),  # parts of other sizes
    ],
)
def test_groups_of_which_parts_have_a_baseline_each_are_several(advantages: list[float], num: int) -> None:
    group = with_fields(group_of([1.0, 0.0, 1.0, 0.0] + [0.0] * 4), advantage=advantages)
    report = degeneracy_of_run(run_of(group, with_fields(group_of([1.0, 0.0]), advantage=[0.5, -0.5])))
    assert report.num_merged == num
    assert ("The logged advantages of 1 group have the means of several" in findings_of(report)) == bool(num)


def test_group_sizes_and_a_base_pass_rate_may_be_named() -> None:
    rows = degeneracy_of_run(two_steps(), group_sizes=(8, 2, 4)).by_group_size
    assert [(row.group_size, row.method) for row in rows] == [(4, "observed"), (2, "unbiased"), (8, "forecast")]
    # Three dead groups, and 2 of the 6 pairs of the mixed one.
    assert rows[1].degeneracy.value == pytest.approx((3 + 2 / 6) / 4)
    assert "needs at least 10 prompts, there are 4" in rows[2].degeneracy.undefined
    report = degeneracy_of_run(two_steps(), options=DegeneracyOptions(base_pass_rate=0.5))
    assert report.iid_prediction.value == 0.125
    assert report.pass_rate_origin == "the given base pass rate, 0.5"
    assert report.by_step[1].iid_prediction.value == 0.125
    assert "need 5 different prompts" in report.gap_decomposition.over_time.undefined


def test_fractional_rewards_are_tied_until_a_threshold_is_given() -> None:
    run = run_of(group_of([0.4, 0.4]), group_of([0.9, 0.9]), group_of([0.1, 0.9]))
    unknown = degeneracy_of_run(run)
    assert unknown.frac_tied.value == unknown.frac_reward_zero_std.value == pytest.approx(2 / 3)
    assert unknown.success_threshold is None
    assert unknown.pass_rate.undefined == unknown.jensen_gap.undefined == NO_THRESHOLD
    defined = degeneracy_of_run(run, success_threshold=0.5)
    assert (defined.frac_all_pass.value, defined.frac_all_fail.value) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert defined.pass_rate.value == 0.5


def hidden(rewards: Callable[[int], list[float]], *, visits: int = 20, **fields: Callable[[int], object]) -> str:
    """The findings on a log in which 20 prompts return so often, by the rewards of each of its groups of 8."""
    groups = []
    for n in range(20 * visits):
        options = {name: values(n) for name, values in fields.items()}
        groups.append(group_of(rewards(n), step=n // 20, prompt=f"p{n % 20}", **options))
    report = degeneracy_of_run(run_of(*groups))
    return f"{findings_of(report)} {dead_group_advice(report)}"


@pytest.mark.slow
def test_what_hides_dead_groups_is_said() -> None:
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.05, 0.95, 20)

    def coins(n: int) -> list[float]:
        return [float(coin) for coin in rng.random(8) < rates[n % 20]]

    def live(n: int) -> list[float]:
        return next(drawn for drawn in iter(lambda: coins(n), None) if 0 < sum(drawn) < 8)

    quiet = hidden(coins)
    for sentence, log in {
        "a filter has probably dropped dead groups": hidden(live),
        "next to nothing compared with other groups": hidden(
            lambda n: [coin + 1e-4 * rng.random() for coin in coins(n)]
        ),
        "; in 75 they differ by 1e-06 at most, next": hidden(
            lambda n: [float(n % 8 * k % 7 > 2) if n % 4 else 1e-6 * k / 7 * (n % 16 > 0) for k in range(8)]
        ),
        "in 400 they differ by 1e-05 at most: what the trainer adds to the standard deviation": hidden(
            lambda n: [1e-5, 0.0] * 4
        ),
        "Look at the scale of the rewards": hidden(lambda n: [1e-5 * (n % 5 > 0), 0.0] * 4),
        "400 all fail": hidden(lambda n: [1e-9, 0.0] * 4),
        "agree more than their prompt explains": hidden(lambda n: coins(n)[:1] * 8),
        "the logged advantages fall where the rewards rise": hidden(
            lambda n: [1.0, 0.0] * 4, advantages=lambda n: [-1.0, 1.0] * 4
        ),
        "In 200 groups of equal rewards the logged advantages are not zero": hidden(
            lambda n: [float(n % 2)] * 4 + [1.0] * 4, advantages=lambda n: [n % 2 + 0.5] * 8
        ),
        "A pass is one of 'correct': 3,200 rollouts reach 1 without it": hidden(
            lambda n: [1.0] * 8, functions=lambda n: {"format": [1.0] * 8, "correct": [0.0] * 8}
        ),
        "or the log leaves out what fails, before": hidden(lambda n: [1.0] * 8),
        "Every rollout fails: look at the reward function": hidden(lambda n: [0.0] * 8),
        "Every rollout has one and the same reward": hidden(lambda n: [0.5 + 1e-9 * k for k in range(8)]),
        "40 of 400 groups have a multiple of the usual 8 rollouts": hidden(
            lambda n: [0.0, 1.0] * (8 if n % 20 < 2 else 4)
        ),
        "One prompt has 34.5 % of the rollouts": hidden(lambda n: [0.0, 1.0] * (4 if n % 20 else 40)),
        "In 400 of 400 groups with unequal rewards the logged advantages do not sum to zero": hidden(
            lambda n: [1.0, 0.0] * 4, advantages=lambda n: [2.0, 0.0] * 4
        ),
        "Whether that is luck so few rollouts of a prompt do not tell": hidden(lambda n: [float(n % 2)] * 2, visits=1),
    }.items():
        assert sentence in log
        assert sentence not in quiet
    assert "a filter has probably" not in hidden(lambda n: [1.0] + [0.0] * 7)


def test_copies_and_rows_that_repeat_are_told_before_the_share(tmp_path: Path) -> None:
    for num_texts, num_extra, first, advice in (
        (1, 0, "87.5 % of completions in groups of equal rewards are exact copies", "Look at the sampler"),
        (8, 5, "Groups differ in size but have 8 different completions each: rows", "Keep each rollout once"),
        (8, 0, "20 of 20 groups", "Every rollout passes"),
    ):
        rows = [(step, str(k % num_texts)) for step in range(20) for k in range(8 + step % 2 * num_extra)]
        lines = ({"step": step, "prompt": f"p{step % 4}", "completion": text, "reward": 1.0} for step, text in rows)
        report = degeneracy_of_run(read_run(write_lines(tmp_path / "log.jsonl", *lines)))
        assert (report.summary[0][: len(first)], dead_group_advice(report)[: len(advice)]) == (first, advice)


@pytest.mark.parametrize(
    ("sizes", "steps"), [((4, 4, 8, 8, 4), " at steps 3,4:"), ((4, 4, 4), ""), ((4, 4, 8, 6), ""), ((4, 8, 8), "")]
)
def test_steps_that_were_logged_twice_are_named(sizes: Sequence[int], steps: str) -> None:
    groups = [group_of([0.0, 1.0], step=step, prompt=str(n)) for step, size in enumerate(sizes, 1) for n in range(size)]
    text = findings_of(degeneracy_of_run(run_of(*groups)))
    assert (f"There are twice the usual rollouts{steps}" in text) == bool(steps)
    gap = [group_of([0.0, 1.0], step=step + 20 * (step > 10)) for step in range(30)]
    assert "a multiple of the usual" not in text
    assert "Nothing was logged at steps 11 to 30." in findings_of(degeneracy_of_run(run_of(*gap)))


@pytest.mark.parametrize(("shares", "is_said"), [((0.5, 0.75), True), ((1.0, 0.95), False), ((0.5,), False)])
def test_rollouts_of_few_steps_do_not_hide_what_was_logged_of_most(shares: Sequence[float], is_said: bool) -> None:
    metrics = {step: {"frac_reward_zero_std": share} for step, share in enumerate((1.0, *shares), start=1)}
    text = findings_of(degeneracy_of_run(run_of(group_of([1, 1], step=1), metrics=metrics)))
    note = "The trainer logged 62.5 % at 2 other steps, of which there are no rollouts: the 100.0 % above is of 1 step."
    assert (note in text, "other step" in text) == (is_said, is_said)


def test_a_gap_is_no_multiple_of_a_prediction_that_large_groups_make_next_to_nothing() -> None:
    large = hidden(lambda n: [float(n % 2)] * 512, visits=1)
    assert "times the prediction" in hidden(lambda n: [float(n % 2)] * 4, visits=1)
    assert "the gap is +100.0" in large
    assert "times the prediction" not in large


def test_rewards_of_minus_one_fail_and_unequal_groups_have_no_common_size() -> None:
    report = degeneracy_of_run(run_of(group_of([-1, -1]), group_of([1, 1])))
    assert (report.frac_all_fail.value, report.frac_all_pass.value) == (0.5, 0.5)
    report = degeneracy_of_run(run_of(group_of([1, 0]), group_of([0, 0, 0])), group_sizes=(2,))
    assert report.group_size is None
    assert [(row.group_size, row.method) for row in report.by_group_size] == [(2, "unbiased")]


def test_senseless_options_are_refused() -> None:
    with pytest.raises(UsageError, match="A pass rate lies between 0 and 1, got 41"):
        DegeneracyOptions(base_pass_rate=41.0)
    with pytest.raises(UsageError, match="A group has at least 2 rollouts, got a group size of 1"):
        degeneracy_of_run(two_steps(), group_sizes=(4, 1))


def test_humaneval_as_published(shared_data: Path) -> None:
    report = degeneracy_of_run(humaneval(shared_data), group_sizes=(2, 4, 8, 16))
    rows = report.by_group_size[1:]
    assert report.pass_rate.value == pytest.approx(0.22116, abs=5e-6)
    assert [row.degeneracy.value for row in rows] == pytest.approx([0.82646, 0.68398, 0.56565, 0.45870], abs=5e-6)
    assert [row.iid_prediction.value for row in rows] == pytest.approx([0.65551, 0.37035, 0.13540, 0.01833], abs=5e-6)
    report = degeneracy_of_run(tau_bench(shared_data))
    assert (report.group_size, report.frac_reward_zero_std.value) == (4, 0.48)


@pytest.mark.parametrize(
    ("folder", "reward", "num_dead", "all_pass", "all_fail"),
    [
        ("trl_full/run", None, 66, 26, 40),
        ("trl_lora/run", None, 108, None, None),
        ("trl_lora/run", "accuracy_reward", 116, 63, 53),
    ],
)
def test_real_runs_count_as_their_trainer_did(
    shared_data: Path, folder: str, reward: str | None, num_dead: int, all_pass: int | None, all_fail: int | None
) -> None:
    report = measure_degeneracy(shared_data / "runs" / folder, reward=reward)
    assert report.num_groups == 160
    assert report.frac_reward_zero_std.value == num_dead / 160
    assert report.frac_all_pass.value == (None if all_pass is None else all_pass / 160)
    assert report.frac_all_fail.value == (None if all_fail is None else all_fail / 160)
    for row in report.by_step if reward is None else ():
        assert row.logged == pytest.approx(row.frac_reward_zero_std.value, abs=1e-7)


def test_reward_model_scores_leave_no_group_dead(shared_data: Path) -> None:
    # 100 problems x 8 samples: the boolean verdict leaves 90 groups dead, the reward model's score none.
    path = shared_data / "qwen_math_rm8" / "math_cot_100.jsonl"
    report = measure_degeneracy(path)
    assert (report.num_groups, report.group_size) == (100, 8)
    assert report.frac_reward_zero_std.value == 0.9
    assert report.iid_prediction.value == pytest.approx(0.47025, abs=5e-6)
    assert report.starvation.resampling_factor.value == pytest.approx(10.0)
    assert measure_degeneracy(path, reward="pred_score").frac_reward_zero_std.value == 0.0


def test_fractional_rewards_in_float32_explain_another_logged_share() -> None:
    run = run_of(
        group_of([0.1, 0.1], step=1, prompt="a"),
        group_of([0.2, 0.4], step=1, prompt="b"),
        metrics={1: {"frac_reward_zero_std": 0.0}},
    )
    assert "in float32 misses groups of equal fractional rewards" in findings_of(degeneracy_of_run(run))


def test_trl_tests_batches_and_no_groups_under_some_arguments() -> None:
    groups = group_of([1, 1], step=1, prompt="a"), group_of([0, 1], step=1, prompt="b")
    metrics = {1: {"frac_reward_zero_std": 0.0}}
    assert "with scale_rewards = 'batch'" in findings_of(degeneracy_of_run(run_of(*groups, metrics=metrics)))
    for settings in ({"scale_rewards": "batch"}, {"multi_objective_aggregation": "normalize_then_sum"}):
        named = run_of(*groups, metrics=metrics, settings=settings)
        assert "the trainer logged another" not in findings_of(degeneracy_of_run(named))


def test_a_step_whose_other_rollouts_lack_a_reward_was_not_logged_twice() -> None:
    scored = [group_of([0, 1], step=step, prompt=f"a{step}") for step in range(4)]
    last = [group_of([1, 0] if step == 3 else [1, None], step=step, prompt=f"b{step}") for step in range(4)]
    assert not degeneracy_of_run(run_of(*scored, *last)).doubled_steps


MIXED, DEAD = (1, 0, 1, 0), (0, 0, 0, 0)


def rows(step: int, *groups: tuple[int, ...]) -> str:
    pairs = ((index, reward) for index, group in enumerate(groups) for reward in group)
    lines = (json.dumps({"step": step, "group_id": f"g{index}", "reward": reward}) for index, reward in pairs)
    return "".join(f"{line}\n" for line in lines)


def append(path: Path, text: str) -> Callable[[], None]:
    def write() -> None:
        with path.open("a") as stream:
            stream.write(text)

    return write


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


class Writer:
    """Writes one part of a log in every pause between two looks; then nothing, until the follower has enough."""

    def __init__(self, *parts: Callable[[], None]) -> None:
        self.parts = list(parts)
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.parts:
            self.parts.pop(0)()


def nothing() -> None:
    """The trainer thinks."""


def followed(path: Path, *parts: Callable[[], None], notices: list[str] | None = None) -> list[tuple[int, int, float]]:
    notice = (notices if notices is not None else []).append
    writer = Writer(*parts)
    pace = Pace(interval=1.0, idle=3.0, sleep=writer.sleep, clock=lambda: writer.seconds)
    steps = follow_degeneracy(path, pace=pace, notice=notice)
    return [(row.step, row.num_groups, row.frac_reward_zero_std.value or 0.0) for row in steps]


def test_a_growing_log_yields_each_step_once(tmp_path: Path) -> None:
    write(log := tmp_path / "log.jsonl", rows(1, MIXED, DEAD))
    second, third = rows(2, DEAD, DEAD), rows(3, MIXED, MIXED)
    reported = followed(log, append(log, second[:-70]), append(log, second[-70:] + third[:60]), append(log, third[60:]))
    assert reported == [(1, 2, 0.5), (2, 2, 1.0), (3, 2, 0.0)]
    by_step = measure_degeneracy(log).by_step
    assert reported == [(row.step, row.num_groups, row.frac_reward_zero_std.value) for row in by_step]


def test_new_files_are_read_and_a_changed_step_is_yielded_again(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", rows(1, DEAD))
    late = rows(1, DEAD, MIXED).replace('"g0"', '"g9"')
    growth = (lambda: write(tmp_path / "2.jsonl", rows(2, MIXED)), nothing, lambda: write(tmp_path / "1b.jsonl", late))
    assert followed(tmp_path, *growth) == [(1, 1, 1.0), (2, 1, 0.0), (1, 3, 2 / 3)]
    log = tmp_path / "anew" / "log.jsonl"  # a log that starts anew is read anew
    write(log, rows(1, DEAD) + rows(2, DEAD))
    assert followed(log, nothing, lambda: write(log, rows(1, MIXED))) == [(1, 1, 1.0), (2, 1, 1.0), (1, 1, 0.0)]


def test_a_failed_look_is_reported_and_the_next_growth_is_read(tmp_path: Path) -> None:
    write(log := tmp_path / "log.jsonl", rows(1, DEAD))
    notices: list[str] = []
    growth = (lambda: write(log, "{\n"), lambda: write(log, rows(1, MIXED)))
    assert followed(log, *growth, notices=notices) == [(1, 1, 0.0)]
    assert len(notices) == 1
    assert notices[0].startswith(f"{log} could not be read (")
    assert notices[0].endswith("; waiting for more.")
    with pytest.raises(InputError, match="There is no file or folder"):
        followed(tmp_path / "none.jsonl")


def test_reading_takes_at_most_half_of_the_time_once_the_log_was_read(tmp_path: Path) -> None:
    write(log := tmp_path / "log.jsonl", rows(1, DEAD))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        if len(slept) < 2:
            append(log, rows(2 + len(slept), MIXED))()
        slept.append(seconds)

    # the first two looks take 30 seconds, the third 1
    times = iter([0.0, 30.0, 32.0, 32.0, 62.0, 64.0, 92.0, 93.0, 95.0, 155.0])
    pace = Pace(interval=2.0, idle=60.0, sleep=sleep, clock=lambda: next(times))
    assert [row.step for row in follow_degeneracy(log, pace=pace)] == [1, 2, 3]
    assert slept == [2.0, 2.0, 28.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("pace", "message"),
    [
        (Pace(interval=0.0), "--every is a positive number of seconds, got 0"),
        (Pace(interval=5.0, idle=2.0), "It cannot end after 2 seconds without growth and look every 5 seconds"),
    ],
)
def test_a_senseless_pace_is_refused(tmp_path: Path, pace: Pace, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(follow_degeneracy(tmp_path, pace=pace))


def test_histogram_shows_the_ends_and_adds_up() -> None:
    report = degeneracy_of_run(beta_run())
    bars = report.pass_rates.histogram
    assert len(bars) == 9
    assert sum(bar.observed for bar in bars) == pytest.approx(1.0)
    assert sum(bar.beta_binomial for bar in bars) == pytest.approx(1.0)
    assert sum(bar.binomial for bar in bars) == pytest.approx(1.0)
    assert bars[0].observed == report.frac_all_fail.value
    assert bars[-1].observed == report.frac_all_pass.value


def test_prediction_is_named_for_every_p() -> None:
    report = degeneracy_of_run(two_steps(), group_sizes=(8,), options=DegeneracyOptions(base_pass_rate="step"))
    assert "groups of 8 rollouts need 9 different prompts" in report.by_group_size[1].iid_prediction.undefined
    origins = [row.pass_rate_origin for row in report.predictions]
    assert origins == ["the mean of each step", "the mean of this log over 4 groups"]
    assert "need 5 different prompts" in report.iid_prediction.undefined
    assert report.predictions[0].iid_prediction == report.iid_prediction
    assert report.gap_decomposition.over_time == report.gap_decomposition.between_prompts == report.jensen_gap


def test_larger_groups_are_forecast() -> None:
    rows = {row.group_size: row for row in degeneracy_of_run(beta_run(), group_sizes=(4, 16, 100)).by_group_size}
    methods = {size: row.method for size, row in rows.items()}
    assert methods == {4: "unbiased", 8: "observed", 16: "forecast", 100: "forecast"}
    assert rows[4].degeneracy.value > rows[8].degeneracy.value > rows[16].degeneracy.value
    gap = rows[16].degeneracy.value - rows[16].iid_prediction.value
    assert rows[16].jensen_gap.value == pytest.approx(gap, abs=1e-12)
    assert rows[100].degeneracy.undefined == "G = 100 is more than 8 times the 8 samples of a prompt"


def test_target_names_a_size_and_an_amount_of_resampling() -> None:
    run = with_tokens(beta_run(num_prompts=200))
    report = degeneracy_of_run(run, options=DegeneracyOptions(target_degeneracy=0.3))
    now, larger, resampling = report.target.plans
    assert (now.plan, larger.plan, resampling.plan) == ("now", "larger groups", "resampling")
    dead = now.degeneracy.value
    assert dead > 0.3
    assert larger.method == "forecast"
    assert larger.degeneracy.value <= 0.3
    tokens = larger.group_size * report.starvation.tokens_per_rollout.value
    assert larger.tokens_per_group.value == pytest.approx(tokens)
    below = degeneracy_of_run(run, group_sizes=(larger.group_size - 1,)).by_group_size[-1]
    assert below.degeneracy.value > 0.3
    assert resampling.rollouts_per_group.value == pytest.approx(8 * 0.7 / (1 - dead))
    assert (resampling.degeneracy.value, resampling.degeneracy.num_units) == (0.3, now.degeneracy.num_units)


def test_a_target_may_be_reached_out_of_reach_or_not_forecast() -> None:
    easy = degeneracy_of_run(beta_run(), options=DegeneracyOptions(target_degeneracy=0.99))
    assert easy.target.plans[1].group_size == 2
    assert "token ids" in str(easy.target.plans[0].tokens_per_group.undefined)
    hard = degeneracy_of_run(beta_run(), options=DegeneracyOptions(target_degeneracy=0.001))
    assert "no group size up to 8 times 8 is known to bring the share to 0.001" in findings_of(hard)
    dead = degeneracy_of_run(run_of(group_of([0, 0], prompt="a")), options=DegeneracyOptions(target_degeneracy=0.5))
    assert "by resampling not possible (no group is alive" in findings_of(dead)
    groups = [group_of([0.8, 0.9, 0.1, 0.2], prompt=f"p{i}") for i in range(6)]
    groups += [group_of([0.8, 0.9, 0.8, 0.9], prompt=f"q{i}") for i in range(6)]
    report = degeneracy_of_run(run_of(*groups), success_threshold=0.5, group_sizes=(8,))
    assert "passes do not tell which groups have equal rewards" in report.by_group_size[-1].degeneracy.undefined
    assert report.pass_rates.histogram == ()


@pytest.mark.parametrize("target", [0.0, 1.0, 20.0])
def test_target_is_a_share(target: float) -> None:
    with pytest.raises(UsageError, match="A target share lies between 0 and 1"):
        DegeneracyOptions(target_degeneracy=target)
