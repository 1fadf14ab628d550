import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope import measure_spike
from gradscope.diagnostics.spike import measure as module
from gradscope.errors import InputError
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.directions import TensorNorm
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import measure_rollout_tokens
from gradscope.metrics.gram.geometry import projection_shares
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.gradients.models import DAPO, tiny_groups, tiny_policy
from tests.rollouts.readers.lines import write_lines


def jumping(*, jump: int = 7, by: float = 9.0, steps: int = 20) -> dict[int, float]:
    return {step: (1.0 + 0.1 * (step % 4)) * (by if step == jump else 1.0) for step in range(1, steps + 1)}


def test_courses_match_the_last_part_of_their_trainers_names() -> None:
    metrics = {
        1: {"actor/kl_loss": 0.1, "grad_norm": 1.0, "critic/kl": 9.0},
        2: {"actor/pg_loss": -0.5, "entropy": 1.0},
    }
    logged = module.logged_series(run_of(group_of([0.0, 1.0], step=1), metrics=metrics))
    assert logged == {"grad_norm": {1: 1.0}, "critic/kl": {1: 9.0}, "actor/pg_loss": {2: -0.5}}
    assert module.logged_series(run_of(group_of([0.0], step=1))) == {}


def test_the_gradient_norm_decides_or_the_first_number_that_is_none() -> None:
    assert module.outstanding_step({"grad_norm": jumping(jump=7), "kl": jumping(jump=3, by=99.0)})[0] == 7
    assert module.outstanding_step({"grad_norm": {1: 1.0}, "kl": jumping(jump=3)})[0] == 3
    assert module.outstanding_step({"grad_norm": jumping(by=1.0), "kl": jumping(jump=5, by=99.0)})[0] == 5
    assert module.outstanding_step({"grad_norm": jumping(by=1.0), "loss": jumping(jump=5, by=99.0)})[0] == 3
    logged = {"grad_norm": jumping() | {12: math.inf}, "loss": jumping() | {11: math.nan, 13: math.nan}}
    assert module.outstanding_step(logged)[0] == 11
    for logged in ({}, {"grad_norm": jumping(steps=8)}, {"kl": dict.fromkeys(range(20), 0.0)}):
        with pytest.raises(InputError, match="No step can be singled out"):
            module.outstanding_step(logged)


def test_a_number_is_compared_with_those_around_it_or_says_why_not() -> None:
    metric = module.metric_at("grad_norm", jumping(), 7, num_chosen_from=20)
    assert (metric.value.value, metric.is_unusual) == (pytest.approx(9 * 1.3), True)
    assert metric.typical.value == pytest.approx(1.1)
    quiet = module.metric_at("grad_norm", jumping(), 8, num_chosen_from=1)
    assert not quiet.is_unusual
    assert (quiet.by_chance.value or 0) < (metric.by_chance.value or 0)
    broken = module.metric_at("loss", {1: math.nan}, 1, num_chosen_from=1)
    assert (broken.is_unusual, broken.value.undefined) == (True, "it was logged as no finite number")
    single = module.metric_at("loss", {1: 2.0}, 1, num_chosen_from=1)
    assert (single.is_unusual, single.value.value) == (False, 2.0)
    assert single.deviation.undefined == "0 other steps have the number, and a spread needs 8"


def prepared(groups: list[RolloutGroup] | None = None) -> PreparedStep:
    return prepare_step(tiny_policy("llama_untied_biases"), groups or tiny_groups(), DAPO)


@pytest.mark.parametrize("limit", [0, 512])
def test_tokens_are_of_the_rollouts_with_the_largest_part(limit: int) -> None:
    step = prepared()
    gram = measure_step(step)
    tensors, tokens = module.spike_parts(step, gram, most_tokens=limit)
    assert [tensor.tensor for tensor in tensors] == list(step.policy.trainable)
    assert gram.logged_gram is not None
    shares = projection_shares(gram.logged_gram)
    largest = list(zip(gram.group_ids, gram.samples, strict=True))[int(abs(shares).argmax())]
    assert [(rollout.group_id, rollout.sample) for rollout in tokens][:1] == ([largest] if limit else [])


@pytest.mark.parametrize("advantage", [0.0, None])
def test_nothing_is_asked_of_a_gradient_that_is_zero_or_not_known(advantage: float | None) -> None:
    groups = [with_fields(group, advantage=advantage) for group in tiny_groups()]
    step = prepared(groups)
    gram = measure_step(step)
    assert module.spike_parts(step, gram, most_tokens=8) == ((), ())
    reasons = {rollout.projection_share.undefined for rollout in module._rollouts_of(groups, gram, "not logged")}
    assert reasons == {"the gradient is zero" if advantage == 0 else "not logged"}


@pytest.fixture(scope="module")
def gram() -> StepGram:
    return measure_step(prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO))


def test_rollouts_come_by_their_part_of_the_gradient(gram: StepGram) -> None:
    rollouts = module._rollouts_of(tiny_groups(), gram, "no reason")
    matrix = gram.logged_gram
    names = list(zip(gram.group_ids, gram.samples, strict=True))
    shares = dict(zip(names, matrix.sum(axis=1) / matrix.sum(), strict=True))
    assert len(rollouts) == len(names)
    assert sum(first.projection_share.value or 0 for first in rollouts) == pytest.approx(1.0)
    sizes = [abs(first.projection_share.value or 0) for first in rollouts]
    assert sizes == sorted(sizes, reverse=True)
    for first in rollouts:
        assert first.projection_share.value == pytest.approx(shares[first.group_id, first.sample])
        remaining = [row for row, name in enumerate(names) if name != (first.group_id, first.sample)]
        assert first.norm_without.value == pytest.approx(np.sqrt(matrix[np.ix_(remaining, remaining)].sum()), rel=1e-6)
    # without gradients those that repeat most come first
    texts = ["one two three four five", "no no no no no no no", "short"]
    group = with_fields(group_of([0.0, 1.0, 0.0]), completion=texts)
    ranked = module._rollouts_of([group], None, "the weights are gone")
    assert [rollout.sample for rollout in ranked] == [1, 0, 2]
    assert ranked[0].repeated_ngrams.value == pytest.approx(0.75)
    assert ranked[2].repeated_ngrams.undefined == "the completion is shorter than 4"
    assert ranked[0].projection_share.undefined == ranked[0].norm_without.undefined == "the weights are gone"


def test_rollouts_go_until_the_norm_is_that_of_the_steps_around(gram: StepGram) -> None:
    removals = module._removals_of(gram, None)
    assert [removal.num_removed for removal in removals] == [1, 2]  # a quarter of six, rounded up
    assert removals[0].grad_norm > removals[1].grad_norm
    assert module._removals_of(gram, removals[0].grad_norm) == removals[:1]
    assert module._removals_of(gram, 0.0) == removals
    zero = replace(gram, gram=np.zeros_like(gram.gram))
    assert module._removals_of(zero, 1.0) == module._removals_of(None, 1.0) == ()


def test_tokens_come_by_the_norm_of_their_gradient(gram: StepGram) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    measured = measure_rollout_tokens(prepared, gram, range(6))
    tokens = module._tokens_of(measured)
    norms = np.concatenate([rollout.norms[rollout.is_seen] for rollout in measured])
    assert [token.norm for token in tokens] == sorted(norms.tolist(), reverse=True)[: module.MAX_TOKENS]
    first = tokens[0]
    (rollout,) = [row for row in measured if (row.group_id, row.sample) == (first.group_id, first.sample)]
    assert (first.text, first.weight) == (rollout.texts[first.position], rollout.weights[first.position])


def test_parameters_come_by_their_part_of_the_squared_norm() -> None:
    rows = [("a", 30, 3.0), ("b", 10, 4.0)]
    norms = [TensorNorm(tensor=name, num_entries=count, norm=norm) for name, count, norm in rows]
    shares = [(tensor.tensor, tensor.tensor_share, tensor.frac_parameters) for tensor in module._tensors_of(norms)]
    assert shares == [("b", pytest.approx(0.64), 0.25), ("a", pytest.approx(0.36), 0.75)]
    assert module._tensors_of([TensorNorm(tensor="a", num_entries=1, norm=0.0)]) == ()


QUIET = {step: {"grad_norm": 1.0 + 0.1 * (step % 4), "kl": 0.01 * (1 + step % 3)} for step in range(1, 21)}
REWARDS = {step: {**values, "reward": 0.5 + 0.01 * (step % 3)} for step, values in QUIET.items()}


def run_with(monkeypatch: pytest.MonkeyPatch, metrics: Mapping[int, Mapping[str, float]], **fields: object) -> Run:
    groups = [group_of([0.0, 1.0, 1.0, 0.0], step=step, advantages=[-1.0, 1.0, 1.0, -1.0]) for step in range(1, 21)]
    run = replace(run_of(*groups, metrics=metrics), **fields)
    monkeypatch.setattr(module, "read_run", lambda *_, **__: run)
    return run


def test_the_step_that_stands_out_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, REWARDS | {9: {"grad_norm": 30.0, "kl": 0.02, "reward": 0.1, "entropy": 1.0}})
    report = measure_spike("run")
    assert (report.step, report.was_named, report.course[9]) == (9, False, 30.0)
    assert {row.name: row.is_unusual for row in report.metrics} == {"grad_norm": True, "kl": False, "reward": True}
    assert report.findings[0].startswith("Step 9 stands out: grad_norm 30, 25 times the 1.2 of the 19 steps")
    assert report.findings[0].endswith("; also reward (0.1).")
    assert report.grad_norm.undefined == "the log has neither ids nor texts of the completions"
    assert len(report.rollouts) == 4
    assert (report.removals, report.tokens, report.tensors, report.engine) == ((), (), (), {})


def test_a_kl_that_runs_away_is_told_beside_a_quiet_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KL that rose from 0.002 to 5.8 at the end was "No step stands out", for the norm alone decided."""
    rising = {s: {**QUIET[s], "kl": QUIET[s]["kl"] * (1.0 if s < 17 else 8.0**s / 8.0**16)} for s in QUIET}
    run_with(monkeypatch, rising)
    report = measure_spike("run")
    assert report.findings[0].startswith("Step 20 stands out: kl 123, 6.14e+03 times")
    assert report.findings[1] == "2 more steps with kl beyond chance: 18, 19."
    assert report.findings[2] == "kl rises from 0.02, its median up to step 13, to 5.44 at steps 17 to 20."
    vanishing = {s: {**QUIET[s], "grad_norm": QUIET[s]["grad_norm"] * 0.4 ** max(s - 10, 0)} for s in QUIET}
    run_with(monkeypatch, vanishing)
    assert any(finding.startswith("grad_norm falls from 1.") for finding in measure_spike("run").findings)
    run_with(monkeypatch, QUIET | {6: {"grad_norm": math.nan}, 9: {"kl": math.inf}})
    assert measure_spike("run").findings[1] == "1 more step with a number that is not finite: 9."
    assert not any("more step" in finding for finding in measure_spike("run", step=6).findings)


def test_a_kl_that_jumps_early_and_stays_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its neighbors lie on either level, so no step was beyond chance; the last are no later."""
    jumping = {step: {**QUIET[step], "kl": QUIET[step]["kl"] * (1.0 if step < 7 else 30.0)} for step in QUIET}
    run = run_with(monkeypatch, jumping)
    report = measure_spike("run")
    assert report.findings[0] == "kl jumps at step 7 from 0.02 to 0.6 and ends at 0.6 (medians of 5 steps)."
    assert report.findings[1].startswith("No step stands out.")
    assert module.spike_sentences(run) == report.findings[:1]
    assert not measure_spike("run", step=3).findings[0].startswith("kl jumps")


@pytest.mark.parametrize(("also", "is_told"), [({}, True), ({50: 9.0}, False)])
def test_a_peak_of_the_first_steps_is_told_from_a_spike(
    monkeypatch: pytest.MonkeyPatch, also: dict[int, float], is_told: bool
) -> None:
    rng = np.random.default_rng(0)
    norms = {step: 0.5 * math.exp(rng.normal(0, 0.1)) * (1 + 20 * math.exp(-step / 2)) for step in range(1, 101)} | also
    run_with(monkeypatch, {step: {"grad_norm": norm} for step, norm in norms.items()})
    sentences = [text for text in measure_spike("run").findings if text.startswith("No step after")]
    assert [text.split()[3] for text in sentences] == ["7"] * is_told


def test_norms_that_were_clipped_and_updates_of_nothing_are_told() -> None:
    norms = {step: min(1.0, 0.1 * step) for step in range(1, 41)}
    rates = {step: 1e-6 * (10 < step < 31) for step in norms}
    metrics = {step: {"grad_norm": norms[step], "lr": rates[step]} for step in norms}
    *_, idle, clipped = module.spike_sentences(run_of(metrics=metrics))
    assert idle == "The learning rate is 0 at 20 of 40 steps (1 to 10, 31 to 40): they change nothing."
    assert clipped == "The gradient norm is 1 at 31 of 40 steps, as after clipping."
    ends = {step: {"grad_norm": 1 + 0.1 * (step % 3), "lr": float(1 < step < 40)} for step in norms}
    assert not any(module.spike_sentences(run_of(metrics=ends)))


def test_that_norms_were_clipped_is_said_before_that_none_stands_out(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", *({"step": n, "grad_norm": min(1.0, 0.1 * n)} for n in range(1, 41)))
    first, second, *_ = measure_spike(log).findings
    assert first == "The gradient norm is 1 at 31 of 40 steps, as after clipping."
    assert second.startswith("No step stands out.")


@pytest.mark.parametrize("name", ["learning_rate", "actor/lr", "grad_norm", "actor/grad_norm"])
def test_a_number_that_is_always_zero_may_be_rounded(name: str) -> None:
    (sentence,) = module.spike_sentences(run_of(metrics={step: {name: 0.0} for step in range(1, 5)}))
    assert "is logged as 0 at all 4 steps: it is rounded, or " in sentence
    assert not any(module.spike_sentences(run_of(metrics={step: {name: 0.0} for step in range(1, 3)})))


def test_a_norm_of_zero_is_told_of_live_steps_alone() -> None:
    metrics = {
        step: {"grad_norm": 0.0 if step in (4, 5, 9) else 1.0, "frac_reward_zero_std": float(step == 9)}
        for step in range(1, 13)
    }
    (sentence,) = module.spike_sentences(run_of(metrics=metrics))
    assert "logged as 0 at 2 of 12 steps with live groups (4, 5): it is rounded, or nothing" in sentence
    unknown = {step: {"grad_norm": values["grad_norm"]} for step, values in metrics.items()}
    assert not module.spike_sentences(run_of(metrics=unknown))
    of_ten = {10 * step: values for step, values in metrics.items()}  # the norm is the last one's, the share a mean
    assert not module.spike_sentences(run_of(metrics=of_ten))


def test_of_many_steps_beyond_chance_the_first_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    spiky = {step: {"kl": 5.0 if step % 20 == 7 else 1.0 + 0.01 * (step % 3)} for step in range(1, 601)}
    run_with(monkeypatch, spiky)
    _, sentence, *_ = measure_spike("run").findings
    assert sentence.startswith("29 more steps with kl beyond chance: ")
    assert sentence.endswith(", 407 and others.")


@pytest.mark.parametrize(("jump", "is_told"), [(30, True), (5, False), (None, False)])
def test_a_learning_rate_that_jumps_after_its_warm_up_is_told(jump: int | None, is_told: bool) -> None:
    rates = {step: {"lr": 1e-6 * (0.98**step if jump is None or step < jump else 100)} for step in range(60)}
    sentences = list(module.spike_sentences(run_of(metrics=rates)))
    assert [sentence.split(" from ")[0] for sentence in sentences] == ["The learning rate rises"] * is_told
    cycles = {step: {"lr": 1e-6 * 0.8 ** (step % 15)} for step in range(60)}
    (sentence,) = module.spike_sentences(run_of(metrics=cycles))
    assert sentence.endswith(" to 1e-06 at step 15, and again at 30, 45: cycles, or restarts.")


@pytest.mark.parametrize(("floor", "is_told"), [(0.0, True), (0.05, True), (0.5, False)])
def test_a_restart_with_a_warm_up_of_its_own_is_told(floor: float, is_told: bool) -> None:
    cycle = [min((s + 1) / 5, 1.0) * (floor + (1 - floor) * (1 + np.cos(np.pi * s / 39)) / 2) for s in range(40)]
    metrics = {step: {"lr": 1e-6 * rate} for step, rate in enumerate(cycle + cycle)}
    rises = [sentence for sentence in module.spike_sentences(run_of(metrics=metrics)) if "rises" in sentence]
    assert len(rises) == is_told
    assert not any("rises" in text for text in module.spike_sentences(run_of(metrics=dict(list(metrics.items())[:40]))))


@pytest.mark.parametrize(("late", "is_told"), [(50.0, True), (-50.0, True), (5.0, False)])
def test_a_loss_that_explodes_alone_is_told(late: float, is_told: bool) -> None:
    losses = {step: {"loss": late if step > 30 else 0.01 * (-1) ** step, "grad_norm": 1.0} for step in range(40)}
    sentences = [text for text in module.spike_sentences(run_of(metrics=losses)) if text.startswith("loss")]
    assert (
        sentences
        == ["loss, by its size, rises from 0.01, its median up to step 25, to 50 at steps 32 to 39."] * is_told
    )


@pytest.mark.parametrize(
    ("num_live", "of_the_kl", "step"),
    [(12, 1e-6, None), (8, 1e-6, 0), (12, 90.0, 19), (0, 1e-6, None)],
    ids=["the norms of dead steps are left out", "too few are live", "the KL explodes", "none is live"],
)
@pytest.mark.parametrize(("name", "live", "dead"), [("frac_reward_zero_std", 0.5, 1.0), ("reward_std", 0.3, 0.0)])
def test_beside_dead_steps_a_live_one_is_no_spike(
    num_live: int, of_the_kl: float, step: int | None, name: str, live: float, dead: float
) -> None:
    """A log of 300 steps, 85 without a live group, had "step 11 stands out: 3.09e+04 times" and 24 more such steps."""
    metrics = {
        number: {"grad_norm": 1 + 0.1 * (number % 4), name: live}
        if number < num_live
        else {"grad_norm": (1e-6 if number < 19 else of_the_kl) * (1 + 0.1 * (number % 3)), name: dead}
        for number in range(20)
    }
    sentences = module.spike_sentences(run_of(metrics=metrics))
    assert [sentence.split()[1] for sentence in sentences if "stands out" in sentence] == [
        str(number) for number in ([] if step is None else [3 if step == 0 else step])
    ]


def test_a_dead_step_that_is_named_keeps_its_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = {step: {"grad_norm": 1e-6, "kl": 0.01, "frac_reward_zero_std": 1.0} for step in (4, 5)}
    run_with(monkeypatch, QUIET | dead)
    assert measure_spike("run", step=4).metrics[0].value.value == 1e-6
    assert (report := measure_spike("run")).step not in dead
    assert report.course.keys() == QUIET.keys()


@pytest.mark.parametrize("name", ["actor/grad_norm", "lr", "actor/lr", "learning_rate"])
def test_the_same_number_and_a_schedule_are_no_second_sign(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    spiked = REWARDS | {9: REWARDS[9] | {"grad_norm": 30.0}}
    run_with(monkeypatch, {step: {**values, name: values["grad_norm"]} for step, values in spiked.items()})
    assert "also" not in measure_spike("run").findings[0]


def test_each_number_that_stands_out_names_its_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    wave = {step: 1 + 0.1 * (step % 5) for step in range(1, 61)}
    metrics = {step: {"grad_norm": level * (1 + 99 * (step == 40)), "kl": level} for step, level in wave.items()}
    for step in range(36, 41):
        metrics[step]["kl"] *= 100
    run_with(monkeypatch, metrics)
    assert "4 more steps with kl beyond chance: 36 to 39." in measure_spike("run").findings


def test_a_clock_is_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, {step: {**values, "progress": 2.0**step} for step, values in REWARDS.items()})
    assert "progress" not in {metric.name for metric in measure_spike("run", step=20).metrics}
    run_with(monkeypatch, REWARDS | {20: REWARDS[20] | {"reward": 2.0**20}})
    assert "reward" in {metric.name for metric in measure_spike("run", step=20).metrics}


def test_another_number_makes_no_step_stand_out_that_was_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many logged numbers one is often further off at the furthest step than one of them is by chance."""
    run_with(monkeypatch, REWARDS | {9: {"grad_norm": 1.5, "kl": 0.02, "reward": 0.1}})
    report = measure_spike("run")
    assert {row.name: row.is_unusual for row in report.metrics} == {"grad_norm": False, "kl": False, "reward": False}
    assert report.findings[0].startswith("No step stands out. The furthest is step 9: grad_norm 1.5")
    assert measure_spike("run", step=9).findings[0].startswith("Step 9 stands out: reward 0.1")


def test_33_times_the_level_beyond_a_heavy_tail_is_said_on_page_and_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = (32, 25, 18, 35, 28, 21, 50, 20, 24, 58, 28, 34, 932, 24, 28, 36, 34, 54, 22, 26, 82, 21)
    metrics = {step: {"kl": 1.0 + step % 7 / 10} for step in range(1, 51)}
    run = run_with(
        monkeypatch, metrics | {index + 1: metrics[index + 1] | {"grad_norm": norm} for index, norm in enumerate(norms)}
    )
    (headline,) = module.spike_sentences(run)
    assert headline.startswith("Step 13 may stand out: grad_norm 932, 33.3 times the 28 of the 21 steps around it, ")
    assert measure_spike("run").findings[0] == headline


def test_a_step_may_be_named_and_one_without_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, QUIET)
    report = measure_spike("run", step=4)
    assert (report.step, report.was_named) == (4, True)
    assert report.findings[0].startswith("Step 4 does not stand out: grad_norm 1, 0.")
    run_with(monkeypatch, QUIET)
    with pytest.raises(InputError, match="has nothing of step 99") as error:
        measure_spike("run", step=99)
    assert error.value.hint == "It has steps 1 to 20."


def test_a_step_that_is_broken_or_has_no_rollouts_is_judged_by_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, QUIET | {6: {"grad_norm": math.nan}})
    report = measure_spike("run")
    assert (report.step, 6 in report.course) == (6, False)
    assert report.findings[0] == "Step 6 is broken: grad_norm was logged as NaN or infinity."
    run_with(monkeypatch, QUIET | {30: {"grad_norm": 50.0}})
    report = measure_spike("run")
    assert (report.step, report.rollouts) == (30, ())
    assert report.grad_norm.undefined == "the log has no rollouts of step 30"


@pytest.mark.parametrize(
    ("text", "share"), [("abcd", 0.0), ("aaaaaaaa", 0.8), ("abcdabcdabcd", 5 / 9), ("abcdefghij", 0.0), ("abc", None)]
)
def test_runs_that_stood_there_before_are_counted(text: str, share: float | None) -> None:
    assert module.repeated_ngrams(text) == (None if share is None else pytest.approx(share))
    assert module.repeated_ngrams([1, 2, 1, 2], length=2) == pytest.approx(1 / 3)
