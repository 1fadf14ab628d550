import math

import pytest

from gradscope.diagnostics.logged.policy import GENERATION, PARTS, POLICY, TRUNCATED, absence_of
from gradscope.diagnostics.logged.tokens import logged_part
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.results.envelope import to_jsonable
from gradscope.results.logged import LoggedPolicy, SamplerMismatch, Staleness
from tests.diagnostics.logged.made_up_tokens import drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of

FEW = Resampling(num_resamples=100)


def test_ends_and_times_are_those_of_rollouts_that_completed() -> None:
    ends = logged_part(GENERATION, drifting_run(), FEW)
    assert ends.overall.frac_truncated.value == 0.5
    assert ends.overall.seconds.value == 1.5
    assert ends.overall.slowest_over_mean.value == pytest.approx(2 / 1.5)
    assert [row.step for row in ends.by_step] == [1, 2, 3]
    ends = ("truncated", "completed", "completed", "completed", "error")
    generation = logged_part(GENERATION, run_of(tokens_of(*({"status": end} for end in ends), {})), FEW)
    assert generation.overall.frac_truncated.value == 0.25
    assert generation.overall.seconds.undefined == "rollouts were not timed"
    assert generation.overall.slowest_over_mean.undefined == "rollouts were not timed"


@pytest.mark.parametrize("name", TRUNCATED)
def test_the_trainers_share_stands_in(name: str) -> None:
    groups = [group_of([1, 0], step=step) for step in (1, 2, 3)]
    metrics = {1: {name: 0.5}, 2: {"loss": 1.0}, 3: {name: 0.25}}
    ends = logged_part(GENERATION, run_of(*groups, metrics=metrics), FEW)
    assert ends.overall.frac_truncated.value == pytest.approx(0.375)
    assert [(row.step, row.frac_truncated.value) for row in ends.by_step] == [(1, 0.5), (3, 0.25)]


def test_a_logged_nan_is_not_passed_over() -> None:
    ends = logged_part(GENERATION, run_of(group_of([1, 0], step=1), metrics={1: {TRUNCATED[0]: math.nan}}), FEW)
    assert ends.overall.frac_truncated.undefined == "the trainer logged NaN at step 1"
    assert ends.by_step[0].frac_truncated.undefined == "the trainer logged NaN"


def test_times_alone_leave_truncation_unknown() -> None:
    ends = logged_part(GENERATION, run_of(tokens_of({"seconds": 2.0})), FEW)
    assert ends.overall.frac_truncated.undefined == "the log does not say which completions were cut off"
    assert ends.overall.seconds.value == 2.0
    assert ends.overall.slowest_over_mean.undefined == "no step has two timed rollouts"
    zero = logged_part(GENERATION, run_of(tokens_of({"seconds": 0.0}, {"seconds": 0.0})), FEW)
    assert zero.overall.slowest_over_mean.undefined == "no step has two timed rollouts"
    failed = run_of(tokens_of({"status": "error"}, {"seconds": 1e300}))
    assert logged_part(GENERATION, failed, FEW).overall is None


def test_every_part_of_a_log_that_has_them_all() -> None:
    policy = logged_part(POLICY, drifting_run(), RESAMPLING)
    assert set(LoggedPolicy.__struct_fields__) == {*PARTS, "missing"}
    assert policy.missing == {}
    for name in PARTS:
        part = getattr(policy, name)
        assert part.overall.step is None
        assert [row.step for row in part.by_step] == [1, 2, 3]
    assert to_jsonable(policy)["sampler"]["by_step"][0]["step"] == 1


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_missing_part_says_what_logs_it(name: str) -> None:
    policy = logged_part(POLICY, run_of(group_of([1, 0])), RESAMPLING)
    part = getattr(policy, name)
    assert part.overall is None
    reason, hint = absence_of(name, part)
    assert policy.missing[name] == reason
    assert reason.startswith("the log ")
    assert not reason.endswith(".")
    assert hint.endswith(".")


def test_the_reason_is_the_commonest_or_a_contradiction() -> None:
    reason, _ = absence_of("sampler", SamplerMismatch(set_aside={"one reason": 2, "another": 1200}))
    assert reason.endswith("(1,200 rows: another)")
    reason, hint = absence_of("staleness", Staleness(contradiction="steps are odd"))
    assert reason == "steps are odd"
    assert hint == "Count steps from 1, and versions in updates."
