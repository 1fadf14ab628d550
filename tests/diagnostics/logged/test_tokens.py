import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.logged import tokens
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.rollouts.groups import RolloutGroup, Tokens
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import LOGS
from tests.diagnostics.logged.made_up_tokens import drifting_run, scored, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of


class Sizes:
    @staticmethod
    def reduce_step(step: int, groups: Sequence[RolloutGroup]) -> int | None:
        return len(groups) if step < 3 else None

    @staticmethod
    def combine(steps: Mapping[int, int], run: Run, resampling: Resampling) -> tuple[str, Mapping[int, int]]:
        return run.source.path, steps


def test_a_part_is_made_of_the_steps_that_have_something_for_it() -> None:
    groups = [group_of([1], step=step, prompt=prompt) for step, prompt in ((2, "a"), (1, "a"), (2, "b"), (3, "a"))]
    run = run_of(*groups)
    assert tokens.logged_part(Sizes, run, RESAMPLING) == (run.source.path, {1: 1, 2: 2})


def test_masked_tokens_are_left_out_and_positions_are_those_of_the_completion() -> None:
    group = tokens_of(
        scored([-1.0, 0.0, -2.0], [-1.5, math.nan, -2.0], mask=(True, False, True), advantage=0.5),
        scored([-0.25], [-0.5], token_advantages=(-1.0,), advantage=0.5),
        scored([-0.25], [-0.5], mask=(False,)),
    )
    set_aside: Counter[str] = Counter()
    compared = tokens._step_tokens([group], set_aside)
    assert compared.log_ratios.tolist() == [-0.5, 0.0, -0.25]
    assert compared.positions.tolist() == [0, 2, 0]
    assert compared.lengths.tolist() == [2, 1]
    assert compared.advantages.tolist() == [0.5, 0.5, -1.0]
    assert [rollout.sample for rollout in compared.rollouts] == [0, 1]
    assert not set_aside
    rounded = tokens._step_tokens([tokens_of(scored([0.25], [-0.25], token_advantages=(1.0, 2.0)))], set_aside)
    assert (rounded.log_ratios.tolist(), np.isnan(rounded.advantages).all()) == ([-0.5], True)
    empty = tokens._step_tokens([], set_aside)
    assert (len(empty.sampler), len(empty.lengths), empty.prompts) == (0, 0, ())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, tokens.NO_SAMPLER),
        ({"logprobs": (-1.0,)}, tokens.NO_TRAINER),
        (scored([-1.0], [-1.0, -2.0]), tokens.OTHER_LENGTH),
        (scored([-1.0], [-1.0], mask=(True, True)), tokens.OTHER_LENGTH),
        (scored([-1.0, -1.0], [-1.0, math.nan]), tokens.NOT_FINITE),
        (scored([-math.inf], [-1.0]), tokens.NOT_FINITE),
        (scored([1.0], [-1.0]), tokens.NO_LOGPROB),
        (scored([-1.0], [-1e30]), tokens.NO_LOGPROB),
    ],
)
def test_rows_that_cannot_be_compared_are_counted_by_reason(fields: dict[str, Any], reason: str) -> None:
    set_aside: Counter[str] = Counter()
    compared = tokens._step_tokens([tokens_of(fields, scored([-1.0], [-2.0]))], set_aside)
    assert set_aside == {reason: 1}
    assert compared.log_ratios.tolist() == [-1.0]


@pytest.mark.parametrize(
    ("sampler", "trainer", "num_tokens"),
    [((-1.0, -2.0), (0.0, 0.0), 0), ((0.0, 0.0), (-1.0, -2.0), 0), ((0.0, 0.0), (0.0, 0.0), 3), ((-1.0,), (0.0,), 3)],
)
def test_zeros_of_a_whole_step_stand_for_no_log_probabilities(
    sampler: tuple[float, ...], trainer: tuple[float, ...], num_tokens: int
) -> None:
    set_aside: Counter[str] = Counter()
    third = scored([-1.0], [-1.0]) if len(sampler) == 1 else scored(sampler, trainer)
    compared = tokens._step_tokens([tokens_of(scored(sampler, trainer), scored(sampler, trainer), third)], set_aside)
    assert len(compared.lengths) == num_tokens
    assert set_aside == ({} if num_tokens else {tokens.PLACEHOLDERS: 3})


def test_a_rollout_of_which_no_token_counts_is_in_no_loss() -> None:
    masks = (None, (True, False), (False, False), ())
    counts = [tokens._counts_in_loss(tokens_of({"mask": mask}).rollouts[0]) for mask in masks]
    assert counts == [True, True, False, False]
    (masked,) = tokens_of(scored([-0.5], [-0.5], mask=(False,))).rollouts
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,))
    assert tokens._counts_in_loss(replace(masked, earlier=(before,)))


def test_each_sequence_of_a_rollout_has_its_own_tokens_and_its_prompt() -> None:
    before = Tokens(
        prompt_ids=(5,), completion_ids=(7, 8), mask=(False, True), logprobs=(0.0, -1.0), trainer_logprobs=(0.0, -1.25)
    )
    unknown = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,), logprobs=(-1.0,))
    outside = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(False,))
    set_aside: Counter[str] = Counter()
    rollout = scored([-0.5], [-0.5], mask=(True,), advantage=0.5, earlier=(before, unknown, outside))
    compared = tokens._step_tokens([tokens_of(rollout, scored([-2.0], [-2.0]))], set_aside)
    assert compared.log_ratios.tolist() == [-0.25, 0.0, 0.0]
    assert (compared.positions.tolist(), compared.lengths.tolist()) == ([1, 0, 0], [1, 1, 1])
    assert (compared.sequences, [sequence.sample for sequence in compared.rollouts]) == ((0, 3, 0), [0, 0, 1])
    assert compared.prompts == ("p", "p", "p")
    assert set_aside == {tokens.NO_TRAINER: 1}


FEW = Resampling(num_resamples=100)


def test_tokens_weigh_the_same_with_a_mean_each_step_and_a_trend() -> None:
    entropy = tokens.logged_part(tokens.ENTROPY, drifting_run(), FEW)
    assert entropy.origin == "tokens"
    assert [row.mean.value for row in entropy.by_step] == pytest.approx([0.1, 0.2, 0.3])
    assert entropy.overall.mean.value == pytest.approx(0.2)
    assert entropy.trend.value == pytest.approx(0.2)
    group = tokens_of(
        {"entropies": (1.0, 9.0, 2.0), "mask": (True, False, True)}, {"entropies": (6.0,)}, {"entropies": (5.0,) * 2}
    )
    entropy = tokens.logged_part(tokens.ENTROPY, run_of(group), FEW)
    assert entropy.overall.mean.value == pytest.approx((1 + 2 + 6 + 5 + 5) / 5)


@pytest.mark.parametrize(
    "fields",
    [
        *({"entropies": values} for values in ((math.nan, 1.0), (-3.0,), (1e6,), ())),
        {"entropies": (1.0,), "mask": (True,) * 2},
    ],
    ids=["nan", "negative", "large", "none", "mask of another length"],
)
def test_a_rollout_with_numbers_that_are_no_entropy_does_not_count(fields: dict[str, Any]) -> None:
    entropy = tokens.logged_part(tokens.ENTROPY, run_of(tokens_of(fields, {"entropies": (0.5, -1e-6, 1.0)})), FEW)
    assert entropy.overall.mean.value == pytest.approx(0.5)  # rounding below zero is zero
    assert tokens.logged_part(tokens.ENTROPY, run_of(tokens_of(fields)), FEW).overall is None


@pytest.mark.parametrize("name", tokens.METRICS)
def test_the_trainers_own_metric_stands_in(name: str) -> None:
    groups = [group_of([1, 0], step=step) for step in (1, 2, 3, 4)]
    metrics = {1: {name: 0.4}, 3: {name: 0.2}, 4: {"loss": 1.0}, 9: {name: 7.0}}
    entropy = tokens.logged_part(tokens.ENTROPY, run_of(*groups, metrics=metrics), FEW)
    assert entropy.origin == name
    assert [(row.step, row.mean.value) for row in entropy.by_step] == [(1, 0.4), (3, 0.2)]
    assert entropy.overall.mean.value == pytest.approx(0.3)


def test_a_logged_entropy_may_be_no_number_and_its_mean_stays_one() -> None:
    groups = [group_of([1, 0], step=step) for step in (1, 2)]
    metrics = {1: {"entropy": 0.4}, 2: {"entropy": math.nan}}
    entropy = tokens.logged_part(tokens.ENTROPY, run_of(*groups, metrics=metrics), FEW)
    assert [row.mean.undefined for row in entropy.by_step] == [None, "the trainer logged NaN"]
    assert entropy.overall.mean.undefined == "the trainer logged NaN at step 2"
    groups = [group_of([1, 0], step=step) for step in range(1, 21)]
    metrics = {step: {"entropy": 0.5 * (step > 14)} for step in range(1, 21)}
    entropy = tokens.logged_part(tokens.ENTROPY, run_of(*groups, metrics=metrics), FEW)
    assert entropy.overall.mean.low == 0.0


def test_each_step_and_the_log_are_measured_unless_values_were_copied() -> None:
    mismatch = tokens.logged_part(tokens.MISMATCH, drifting_run(), FEW)
    assert [row.step for row in mismatch.by_step] == [1, 2, 3]
    assert [row.logprob_gap.value for row in mismatch.by_step] == pytest.approx([0.01, 0.02, 0.03])
    assert mismatch.overall.logprob_gap.value == pytest.approx(0.02)
    assert (mismatch.overall.num_tokens, mismatch.overall.num_sequences, mismatch.overall.step) == (72, 36, None)
    assert mismatch.overall.sequence_ess.value == pytest.approx(1.0)
    assert not mismatch.is_identical
    mismatch = tokens.logged_part(tokens.MISMATCH, run_of(tokens_of(scored([-1.0, -2.0], [-1.0, -2.0]))), FEW)
    assert mismatch.is_identical
    assert mismatch.worst == ()


def test_the_worst_tokens_are_named_the_largest_difference_first() -> None:
    rng = np.random.default_rng(0)
    groups, differences = [], []
    for step in (1, 2):
        sampler, trainer = (-rng.exponential(1.0, (4, 9)) for _ in range(2))
        groups.append(tokens_of(*map(scored, sampler, trainer), step=step))
        distance = np.abs(trainer - sampler)
        differences += [(value, step, row, position) for (row, position), value in np.ndenumerate(distance)]
    first = tokens.logged_part(tokens.MISMATCH, run_of(tokens_of(scored([-1.0] * 30, [-2.0] * 30))), FEW).worst
    assert [token.position for token in first] == list(range(tokens.NUM_WORST))
    worst = tokens.logged_part(tokens.MISMATCH, run_of(*groups), FEW).worst
    assert [[token.step, token.row, token.position] for token in worst] == [
        location for _, *location in sorted(differences, reverse=True)[: tokens.NUM_WORST]
    ]


@pytest.mark.parametrize("part", [tokens.ENTROPY, tokens.MISMATCH, tokens.STALENESS])
def test_a_log_without_any_has_no_numbers(part: Any) -> None:
    empty = tokens.logged_part(part, run_of(group_of([1, 0])), FEW)
    assert (empty.overall, empty.by_step, getattr(empty, "contradiction", "")) == (None, (), "")


def test_steps_without_data_are_left_out_and_rows_counted() -> None:
    run = run_of(group_of([1, 0], step=1), tokens_of(scored([-1.0], [-1.1]), scored([-1.0], [math.nan]), step=2))
    mismatch = tokens.logged_part(tokens.MISMATCH, run, FEW)
    assert [row.step for row in mismatch.by_step] == [2]
    assert mismatch.set_aside == {
        "no log-probabilities of the sampler": 2,
        "a log-probability that is missing, NaN or infinite": 1,
    }


@pytest.mark.parametrize(("log", "num_tokens", "gap"), [("nemo_rl", 9, 0.01), ("prime_rl_tokens", 4, 0.005)])
def test_logs_of_trainers_that_keep_both(log: str, num_tokens: int, gap: float) -> None:
    mismatch = tokens.logged_part(tokens.MISMATCH, read_run(LOGS / log), FEW)
    assert mismatch.overall.num_tokens == num_tokens
    assert mismatch.overall.logprob_gap.value == pytest.approx(gap)


def stale_run() -> object:
    """Lags 0, 2, 2 at step 3 and 0, 3 at step 4; the gap of a token is a tenth of the lag."""
    return run_of(
        tokens_of(
            scored([-1.0], [-1.0], policy_versions=(2, 2)),
            scored([-1.0, -1.0], [-1.2, -0.8], policy_versions=(0, 2)),
            scored([-1.0], [-1.2], policy_versions=(0, 0)),
            step=3,
        ),
        tokens_of({"policy_versions": (3, 3)}, scored([-1.0], [-1.3], policy_versions=(0, 1)), step=4, prompt="q"),
    )


def test_lags_are_those_of_the_first_token_with_share_and_gap() -> None:
    staleness = tokens.logged_part(tokens.STALENESS, stale_run(), FEW)
    assert staleness.overall.num_rollouts == 5
    assert staleness.overall.mean_lag.value == pytest.approx((0 + 2 + 2 + 0 + 3) / 5)
    assert staleness.overall.max_lag.value == 3.0
    assert staleness.overall.frac_above_1.value == pytest.approx(3 / 5)
    assert staleness.overall.frac_mixed.value == pytest.approx(2 / 5)
    assert [(row.step, row.mean_lag.value) for row in staleness.by_step] == [(3, pytest.approx(4 / 3)), (4, 1.5)]
    rows = staleness.by_lag
    assert [(row.lag, row.num_rollouts, row.share) for row in rows] == [(0, 2, 0.4), (2, 2, 0.4), (3, 1, 0.2)]
    assert [row.logprob_gap.value for row in rows] == pytest.approx([0.0, 0.2, 0.3])
    # lags without log probabilities updates or a past say so
    (row,) = tokens.logged_part(tokens.STALENESS, run_of(tokens_of({"policy_versions": (0, 0)})), FEW).by_lag
    assert row.logprob_gap.undefined == "no rollout of this lag has log-probabilities of both sampler and trainer"
    unused = {"policy_versions": (0, 0), "mask": (False,)}
    run = run_of(tokens_of(unused, {"policy_versions": (1, 1)}, step=2))
    staleness = tokens.logged_part(tokens.STALENESS, run, FEW)
    assert staleness.overall.num_rollouts == 1  # no update used the other
    staleness = tokens.logged_part(tokens.STALENESS, run_of(tokens_of({"policy_versions": (7, 9)}, step=2)), FEW)
    assert staleness.overall is None
    assert "newer than its steps" in staleness.contradiction


@pytest.mark.parametrize(("log", "rollouts"), [("prime_rl", 2), ("tinker", 8)])
def test_logs_that_name_the_weights(log: str, rollouts: int) -> None:
    staleness = tokens.logged_part(tokens.STALENESS, read_run(LOGS / log), FEW)
    assert (staleness.overall.num_rollouts, staleness.overall.max_lag.value) == (rollouts, 0.0)
