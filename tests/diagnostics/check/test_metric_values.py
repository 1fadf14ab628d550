"""Which row of which step a metric of gradients means."""

import math
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check.metric_values import (
    MetricValues,
    _group_means,
    furthest_deviation,
    is_token_metric,
    look_closer,
    number_at,
    rank_number,
)
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.steps import trend
from gradscope.results.norms import Quantity, ReplayReport, ReplayVerdict, StepReplay
from gradscope.results.rank import RankReport
from tests.diagnostics.logged.made_up_tokens import drifting_run, scored, tokens_of
from tests.diagnostics.made_up_runs import group_of, norms_with, run_of
from tests.render import examples
from tests.render.rank_examples import correction, entropy_change, kl, logprob_change, token_kind

RUN = run_of(
    group_of([1, 1], step=1, prompt="a"),
    group_of([1, 0], step=2, prompt="a"),
    group_of([0, 0], step=1, prompt="b"),
    group_of([0.5, 0.5], step=1, prompt="c"),
)


@pytest.mark.parametrize(
    ("name", "threshold", "expected"),
    [
        ("frac_reward_zero_std", 1.0, {"a": 0.5, "b": 1.0, "c": 1.0}),
        ("frac_all_pass", 1.0, {"a": 0.5, "b": 0.0, "c": 0.0}),
        ("frac_all_fail", 1.0, {"a": 0.0, "b": 1.0, "c": 1.0}),
        ("pass_rate", 1.0, {"a": 0.75, "b": 0.0, "c": 0.0}),
        ("frac_tied", None, {"a": 0.5, "b": 1.0, "c": 1.0}),
        ("pass_rate", None, {}),
        ("jensen_gap", 1.0, {}),
    ],
)
def test_a_prompt_has_the_mean_of_its_groups(name: str, threshold: float | None, expected: dict[str, float]) -> None:
    assert _group_means(RUN, name, reward=None, threshold=threshold)[0] == expected
    run = run_of(group_of([1, 0], functions={"format": [1, 1]}))
    assert _group_means(run, "frac_all_pass", reward="format", threshold=1.0)[0] == {"p": 1.0}


def test_every_metric_has_a_value_or_a_reason() -> None:
    values = MetricValues(run=run_of(group_of([1, 0], step=1)))
    for name in CATALOG:
        value = values.value(name)
        assert value.estimate.is_defined or (value.estimate.undefined and value.hint), name
    value = MetricValues(run=run_of(group_of([1, 0], step=1), group_of([1, 0], step=2))).value("pass@1")
    assert "logs 2 training steps" in value.estimate.undefined
    assert value.hint


def test_the_reward_of_rollouts_is_had_where_the_trainer_logged_none() -> None:
    values = MetricValues(run=run_of(*(group_of([1, step > 2], step=step, prompt=str(step)) for step in range(1, 5))))
    assert "reward" in values.names()
    assert values.value("reward").estimate.value == values.value("reward@last").estimate.value == 1.0
    assert values.value("reward@trend").estimate.value == pytest.approx(0.6)
    assert values.value("reward@1-2:max").estimate.value == 0.5
    assert "reward" not in MetricValues(run=run_of()).names()


def test_a_measurement_is_made_once_and_for_what_is_asked() -> None:
    values = MetricValues(run=run_of(group_of([None], step=1)))
    first, second = values.value("pass_rate"), values.value("jensen_gap")
    assert first.estimate.undefined == second.estimate.undefined
    assert list(values.cache) == ["degeneracy"]
    values = MetricValues(run=drifting_run(), resampling=Resampling(num_resamples=50))
    assert values.value("staleness.mean_lag").subject == "staleness.mean_lag of the log"
    assert list(values.cache) == ["log_part staleness"]


def rank_report() -> RankReport:
    """Ranks at two steps, the last with two sizes and two advantages."""
    report = examples.rank_report()
    points = ((1, "logged", 8, 9.0), (6, "logged", 4, 2.0), (6, "logged", 8, 5.0), (6, "sign", 8, 7.0))
    curve = [
        replace(report.curve[0], step=step, advantage=name, group_size=size, effective_rank=examples.around(rank))
        for step, name, size, rank in points
    ]
    numbers = {"grad_norm": Estimate.exact(0.7), "cancellation": Estimate.exact(0.4)}
    no_class = Estimate.undefined_because("no mixed group")
    sparsity = {"gini": Estimate.exact(0.3)}
    geometry = replace(report.steps[0], step=6, **numbers, class_subspace_energy=no_class, sparsity=sparsity)
    return replace(report, spectra=(), curve=tuple(curve), steps=(geometry,))


@pytest.mark.parametrize(
    ("name", "expected", "subject"),
    [
        ("effective_rank", 5.0, "effective_rank at step 6, G = 8"),
        ("grad_norm", 0.7, "grad_norm at step 6"),
        ("cancellation", 0.4, "cancellation at step 6"),
        ("sparsity.gini", 0.3, "sparsity.gini at step 6"),
        ("class_subspace_energy", None, "class_subspace_energy at step 6"),
    ],
)
def test_gradient_metrics_are_those_of_the_last_step(name: str, expected: float | None, subject: str) -> None:
    values = MetricValues(run=run_of(group_of([1, 0], step=6)), cache={"rank rollout": rank_report()})
    value = values.value(name)
    assert (value.estimate.value, value.subject) == (expected, subject)


def judged_step(
    step: int, verdict: ReplayVerdict, error: float | None = None, causes: Mapping[str, str] | None = None
) -> StepReplay:
    causes = causes or {}
    quantities = [Quantity(name=name, verdict=verdict, cause=cause) for name, cause in causes.items() if name]
    errors = {} if error is None else {"grad_norm": error}
    cause = next(iter(causes.values()), None)
    judged = {"verdict": verdict, "cause": cause, "quantities": tuple(quantities), "relative_error": errors}
    return replace(examples.replay_report().steps[0], step=step, **judged)


def replay_report(*steps: StepReplay) -> ReplayReport:
    judged = [step.verdict for step in steps if step.verdict != "cannot"]
    unknown = Estimate.undefined_because("no step could be recomputed and judged")
    share = Estimate.exact(judged.count("mismatch") / len(judged)) if judged else unknown
    return replace(examples.replay_report(), steps=steps, verdict=steps[0].verdict, frac_replay_mismatch=share)


NOT_SAVED = "the weights of that step were not saved"
CAUSES = {"reward": "the trainer logged no mean reward", "grad_norm": "no weights are on disk"}


@pytest.mark.parametrize(
    ("step", "expected", "reason"),
    [
        (judged_step(6, "match", 1e-7), 1e-7, None),
        (judged_step(6, "cannot", causes={"": NOT_SAVED}), None, NOT_SAVED),
        (judged_step(6, "cannot", causes=CAUSES), None, CAUSES["grad_norm"]),
        (judged_step(6, "no_gradient", causes={"grad_norm": "every advantage is 0"}), None, "every advantage is 0"),
    ],
)
def test_replay_error_of_the_last_step(step: StepReplay, expected: float | None, reason: str | None) -> None:
    values = MetricValues(run=run_of(group_of([1, 0], step=6)), cache={"replay None": replay_report(step)})
    value = values.value("replay_grad_norm_error")
    assert (value.estimate.value, value.estimate.undefined) == (expected, reason)


def test_parts_of_a_report_are_named_by_their_path_and_a_mean_over_groups_has_prompts() -> None:
    values = MetricValues(run=run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b")))
    assert values.value("starvation.dilution").estimate.value == 0.5
    assert "no other deal" in values.value("overdispersion.z").estimate.undefined
    assert values.value("starvation.frac_tokens").estimate.undefined == "token ids of the completions were not logged"
    values = MetricValues(run=METRIC_VALUES_RUN, resampling=Resampling(num_resamples=50))
    assert len(values.value("frac_reward_zero_std").prompts) == 10
    assert values.value("jensen_gap").prompts == values.value("starvation.dilution").prompts == {}


METRIC_VALUES_RUN = run_of(
    *(group_of(rewards, step=step, prompt=f"{step}-{name}") for step in range(1, 6) for name, rewards in {
        "dead": (1, 1), "other": (1, 1) if step > 3 else (1, 0)
    }.items()),
    metrics={step: {"kl": float(step)} for step in range(1, 6)},
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
    assert MetricValues(run=METRIC_VALUES_RUN).value(name).estimate.value == pytest.approx(value)


def test_the_change_of_a_share_does_not_leave_its_range() -> None:
    assert trend([1, 2, 3, 4, 5], [0.5, 0.5, 0.5, 1.0, 1.0]).ends[1] > 1
    change = MetricValues(run=METRIC_VALUES_RUN).value("frac_reward_zero_std@trend").estimate
    assert change.interval == (-1.0, 1.0)


def test_a_number_of_steps_names_them_and_one_of_groups_has_an_interval() -> None:
    values = MetricValues(run=METRIC_VALUES_RUN)
    share, logged = values.value("frac_reward_zero_std@1-3"), values.value("kl")
    assert share.estimate.low is not None
    assert share.subject == "frac_reward_zero_std of 6 groups in steps 1 to 3"
    assert (logged.estimate.value, logged.subject) == (5.0, "kl at step 5, as the trainer logged it")
    assert "kl" in values.names()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pass@8@last20%", "pass@8 is not known of each step"),
        ("effective_rank@max", "effective_rank is not known of each step"),
        ("kl@10-20", "the run has no such step, it has steps 1 to 5"),
        ("kl@first2:trend", "a trend needs three steps, there are 2"),
    ],
)
def test_what_steps_cannot_say_is_undefined(name: str, reason: str) -> None:
    assert MetricValues(run=METRIC_VALUES_RUN).value(name).estimate.undefined == reason


@pytest.mark.parametrize(
    ("name", "value", "undefined"),
    [
        ("frac_replay_mismatch", 0.5, None),
        ("frac_replay_mismatch@1,2", 0.0, None),
        ("frac_replay_mismatch@max", 1.0, None),
        ("frac_replay_mismatch@last", 1.0, None),
        ("replay_grad_norm_error@max", 0.1, None),
        ("frac_replay_mismatch@2-2", None, "none of the steps '2-2' has a value"),
    ],
)
def test_replays_of_several_steps(name: str, value: float | None, undefined: str | None) -> None:
    steps = {1: judged_step(1, "match", 1e-7), 2: judged_step(2, "cannot"), 3: judged_step(3, "mismatch", 0.1)}
    chosen = [(1, 2, 3), (1, 2), (2,)]
    cache = {f"replay {numbers}": replay_report(*(steps[number] for number in numbers)) for numbers in chosen}
    cache["replay None"] = cache["replay (1, 2, 3)"]
    run = run_of(*(group_of([1, 0], step=step) for step in steps))
    estimate = MetricValues(run=run, cache=cache).value(name).estimate
    assert (estimate.value, estimate.undefined) == (value, undefined)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kl", "it is Infinity at step 5"),
        ("kl@last", "it is Infinity at step 5"),
        ("kl@mean", "it is NaN at step 2, and no finite number at 1 more of these steps"),
        ("kl@1-3:max", "it is NaN at step 2"),
        ("kl@1-3:last", None),
    ],
)
def test_a_logged_number_that_is_not_finite_is_never_passed_over(name: str, reason: str | None) -> None:
    metrics = {step: {"kl": {2: math.nan, 5: math.inf}.get(step, 1.0)} for step in range(1, 6)}
    value = MetricValues(run=replace(METRIC_VALUES_RUN, metrics=metrics)).value(name)
    assert (value.estimate.undefined, value.is_not_finite) == (reason, reason is not None)


NORMS = dict.fromkeys(range(1, 9), 1.0)
ENDED = "it is last known at step 2, and the run goes on to step 8"


@pytest.mark.parametrize("selector", ["", "@last", "@max", "@trend", "@last20%"])
@pytest.mark.parametrize(("norm", "rollouts"), [(math.nan, 7), (math.inf, 2), (math.nan, 0)])
def test_a_number_that_is_none_counts_at_a_step_without_rollouts(selector: str, norm: float, rollouts: int) -> None:
    steps = range(1, rollouts + 1)
    metrics = {step: {"grad_norm": norm if step == 8 else value} for step, value in NORMS.items()}
    run = run_of(*(group_of([1, 0], step=step) for step in steps), metrics=metrics)
    value = MetricValues(run=run).value(f"grad_norm{selector}")
    assert (value.estimate.value, value.is_not_finite) == (None, True)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [("", 1e9), ("@last", 1e9), ("@max", 1e9), ("@mean", (1e9 + 7) / 8), ("@last2", (1e9 + 1) / 2), ("@1-7:max", 1.0)],
)
def test_a_step_without_rollouts_counts(selector: str, expected: float) -> None:
    metrics = {step: {"grad_norm": 1e9 if step == 8 else value} for step, value in NORMS.items()}
    run = run_of(*(group_of([1, 0], step=step) for step in range(1, 4)), metrics=metrics)
    assert MetricValues(run=run).value(f"grad_norm{selector}").estimate.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((f"kl{selector}", ENDED) for selector in ("", "@last", "@max", "@mean", "@1-8:max", "@trend", "@last20%")),
        *((f"frac_reward_zero_std{selector}", ENDED) for selector in ("", "@last", "@last20%")),
        ("kl@first25%", None),
        ("loss@max", None),
        ("late@max", "it is not known at steps 1 to 4"),
        ("late@last", None),
        ("paused@max", "it is not known at steps 3 to 5"),
        ("paused@last", None),
        ("odd@max", "it is not known at step 4"),
        ("thinned@max", None),
        ("frac_reward_zero_std@1-3", None),
        ("jensen_gap", ENDED),
        ("frac_set_aside", None),
        ("generation.frac_truncated", "the log does not say how completions ended or how long they took"),
    ],
)
def test_what_ended_before_the_run_or_paused_is_unknown(name: str, reason: str | None) -> None:
    steps_of = {
        "kl": (1, 2), "late": range(5, 9), "paused": (1, 2, 6, 7, 8), "odd": (1, 2, 3, 5, 6, 7, 8), "thinned": (3, 6)
    }  # fmt: skip
    metrics = {s: {"loss": 1.0, **{metric: 1.0 for metric, steps in steps_of.items() if s in steps}} for s in NORMS}
    run = run_of(*(group_of([1, 0], step=step) for step in (1, 2)), metrics=metrics)
    estimate = MetricValues(run=run, resampling=Resampling(num_resamples=50)).value(name).estimate
    assert estimate.undefined == reason


def test_a_metric_that_ended_before_the_run_is_unknown() -> None:
    run = run_of(*(group_of([1, 0], step=step) for step in range(1, 8)), metrics={8: {"kl": 1.0}})
    values = MetricValues(run=run, resampling=Resampling(num_resamples=50))
    assert values.value("frac_reward_zero_std").estimate.value == 0.0
    assert values.value("frac_reward_zero_std@last").estimate.undefined == ENDED.replace("step 2", "step 7")
    repeated = replace(run, repeats={8: 7})
    assert MetricValues(run=repeated).value("frac_reward_zero_std@last").estimate.value == 0.0

    def deviation(steps: range) -> Estimate:
        metrics = {step: {"grad_norm": step % 3 + 1.0} if step in steps else {"loss": 1.0} for step in range(1, 21)}
        return MetricValues(run=run_of(group_of([1, 0], step=1), metrics=metrics)).value("deviation").estimate

    assert deviation(range(1, 21)).is_defined
    assert deviation(range(1, 13)).undefined == "it is last known at step 12, and the run goes on to step 20"
    run = replace(drifting_run(), metrics={step: {"kl": 1.0} for step in (7, 8)})
    values = MetricValues(run=run, resampling=Resampling(num_resamples=50))
    ended = "it is last known at step 3, and the run goes on to step 8"
    assert [values.value(f"logprob_gap{selector}").estimate.undefined for selector in ("", "@max", "@all")] == [
        ended
    ] * 3
    assert values.value("logprob_gap@1-3:max").estimate.value == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprob_gap", 0.02),
        ("logprob_gap@2-3", 0.025),
        ("sampler.token_ess@first1", 1 / (math.cosh(0.02) / math.cosh(0.01) ** 2)),
        ("logprob_gap@max", 0.03),
        ("entropy.mean", 0.2),
        ("staleness.mean_lag", 1 / 3),
        ("generation.frac_truncated", 0.5),
        ("generation.seconds@max", 1.5),
    ],
)
def test_what_the_log_says_of_its_policy(name: str, value: float) -> None:
    estimate = MetricValues(run=drifting_run(), resampling=Resampling(num_resamples=50)).value(name).estimate
    assert estimate.value == pytest.approx(value)


@pytest.mark.parametrize(("selector", "rows"), [("", 20), ("@last20%", 4), ("@max", 20)])
def test_a_log_without_both_log_probabilities_says_so(selector: str, rows: int) -> None:
    value = MetricValues(run=METRIC_VALUES_RUN).value(f"sampler.token_ess{selector}")
    assert value.estimate.undefined == (
        f"the log does not have the log-probabilities of both sampler and trainer ({rows} rows: no log-probabilities "
        "of the sampler)"
    )
    assert value.hint.startswith("NeMo-RL's training data have them")


def test_a_step_whose_number_is_beyond_floating_point_is_not_passed_over() -> None:
    run = run_of(*(tokens_of(scored([-900.0 if step == 2 else -1.0], [-1.0]), step=step) for step in (1, 2, 3)))
    values = MetricValues(run=run)
    reason = "a ratio in the log is beyond floating-point numbers"
    assert values.value("sampler.chi2_token@max").estimate.undefined == f"{reason} (step 2)"
    assert values.value("sampler.chi2_token").estimate.undefined == reason
    assert values.value("sampler.chi2_token@last").estimate.value == 0.0


LOGGED = {s: {"frac_reward_zero_std": s / 10, "grad_norm": math.nan if s == 5 else 1.0} for s in range(1, 11)}
METRICS_ALONE = replace(run_of(metrics=LOGGED), source=replace(RUN.source, kind="metrics"))


@pytest.mark.parametrize(
    ("name", "value", "undefined"),
    [
        ("frac_reward_zero_std", 0.55, None),
        ("frac_reward_zero_std@last", 1.0, None),
        ("frac_reward_zero_std@first2:max", 0.2, None),
        ("grad_norm", 1.0, None),
        ("grad_norm@max", None, "it is NaN at step 5"),
        ("jensen_gap", None, "the log holds metrics and no rollouts"),
        ("frac_all_pass@last", None, "none of the steps 'all' has a value"),
        ("frac_set_aside", 0.0, None),
        ("deviation", None, "it was logged as no finite number"),
    ],
)
def test_metrics_alone_are_held_to_requirements(name: str, value: float | None, undefined: str | None) -> None:
    estimate = MetricValues(run=METRICS_ALONE).value(name).estimate
    assert (estimate.value, estimate.undefined) == (value if value is None else pytest.approx(value), undefined)
    assert estimate.interval is None or estimate.interval[1] <= 1.0
    metrics = {step: {"loss": 1.0, **({"frac_reward_zero_std": 0.5} if step < 3 else {})} for step in range(1, 9)}
    ended = MetricValues(run=replace(METRICS_ALONE, metrics=metrics)).value("frac_reward_zero_std")
    assert ended.estimate.undefined == ENDED


_KINDS = ({}, {"entropy": "rest"}, {"entropy": "top_fifth", "sign": "positive"}, {"entropy": "top_fifth"})


def numbered(rows: list[object], *names: str) -> tuple[object, ...]:
    """The rows at step 6, each with numbers of its own."""
    return tuple(replace(row, step=6, **dict.fromkeys(names, Estimate.exact(0.1 * i))) for i, row in enumerate(rows))


LAST = {
    "token_kinds": numbered([token_kind(**kind) for kind in _KINDS], "energy_share", "cosine"),
    "corrections": numbered([correction(name) for name in ("none", "tis", "icepop")], "ess", "norm_ratio", "cosine"),
    "entropy_changes": (entropy_change(1), entropy_change(6)),
    "token_kl": (kl(1), kl(6)),
    "logprob_changes": (logprob_change(1), logprob_change(6)),
}


def token_report(**parts: object) -> RankReport:
    return replace(rank_report(), **({**LAST, **parts}))


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("token_kinds.energy_share", ("token_kinds", "top_fifth"), " of the top fifth by entropy"),
        ("token_kinds.cosine", ("token_kinds", "top_fifth"), " of the top fifth by entropy"),
        ("corrections.ess", ("corrections", "tis"), " of tis"),
        ("corrections.norm_ratio", ("corrections", "tis"), " of tis"),
        ("corrections.cosine", ("corrections", "tis"), " of tis"),
        ("entropy_change.rate", ("entropy_changes", None), ""),
        ("entropy_change.cosine", ("entropy_changes", None), ""),
        ("token_kl.top_share", ("token_kl", None), ""),
        ("logprob_changes.matched", ("logprob_changes", None), ""),
    ],
)
def test_token_numbers_are_of_one_row_of_the_last_step(name: str, row: tuple[str, str | None], words: str) -> None:
    entry, (table, kind) = CATALOG[name], row
    report = token_report()
    (chosen,) = [
        row
        for row in getattr(report, table)
        if row.step == 6
        and kind in (None, getattr(row, "correction", None), getattr(row, "entropy", None))
        and (getattr(row, "sign", None), getattr(row, "probability", None)) == (None, None)
    ]
    assert is_token_metric(entry)
    assert rank_number(report, entry) == (number_at(chosen, entry.path.partition(".")[2]), f"{name}{words} at step 6")
    assert look_closer(entry, "a run") == "gradscope rank 'a run' --rows token"
    values = MetricValues(run=run_of(group_of([1, 0], step=6)), cache={"rank token": report})
    assert values.value(name).estimate == rank_number(report, entry)[0]


def test_a_table_or_spectrum_that_the_last_step_lacks_says_why() -> None:
    missing = {"corrections": "step 6: nothing was sampled"}
    other = tuple(kind for kind in LAST["token_kinds"] if kind.entropy is None)
    earlier = replace(LAST["entropy_changes"][0], step=5)
    report = token_report(corrections=(), missing_parts=missing, token_kinds=other, entropy_changes=(earlier,))
    for name, reason in (
        ("corrections.ess", "step 6: nothing was sampled"),
        ("token_kinds.cosine", "no token of the step is of that kind"),
        ("entropy_change.rate", "no token of the step is of that kind"),
    ):
        assert rank_number(report, CATALOG[name])[0].undefined == reason
    estimate, subject = rank_number(replace(rank_report(), curve=()), CATALOG["stable_rank"])
    assert (estimate.undefined, subject) == ("no group has a spectrum", "stable_rank at step 6")
    assert not is_token_metric(CATALOG["stable_rank"])


def test_the_deviation_is_that_of_the_step_that_stands_out_or_there_is_none() -> None:
    run = run_of(group_of([1, 0], step=1), metrics=norms_with())
    estimate, subject = furthest_deviation(run)
    assert estimate.value > 10.0
    assert subject.startswith("deviation of grad_norm at step 7 (chance reaches ")
    value = MetricValues(run=run).value("deviation")
    assert (value.estimate, value.is_not_finite) == (estimate, False)
    broken = run_of(group_of([1, 0], step=1), metrics=norms_with(kl=math.nan))
    assert furthest_deviation(broken)[1] == "deviation of kl at step 9"
    value = MetricValues(run=broken).value("deviation")
    assert (value.is_not_finite, value.estimate.undefined) == (True, "it was logged as no finite number")
    run = run_of(group_of([1, 0], step=1))
    with pytest.raises(InputError, match="No step can be singled out"):
        furthest_deviation(run)
    assert not MetricValues(run=run).value("deviation").is_not_finite
