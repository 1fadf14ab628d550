from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.diagnostics.logged.sampler import NUM_WORST, sampler_mismatch
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.diagnostics.logged.made_up_tokens import both, drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of

FEW = Resampling(num_resamples=100)


def test_each_step_and_the_whole_log_are_measured() -> None:
    found = sampler_mismatch(drifting_run(), FEW)
    assert [row.step for row in found.by_step] == [1, 2, 3]
    assert [row.logprob_gap.value for row in found.by_step] == pytest.approx([0.01, 0.02, 0.03])
    assert found.overall is not None
    assert found.overall.logprob_gap.value == pytest.approx(0.02)
    assert (found.overall.num_tokens, found.overall.num_sequences, found.overall.step) == (72, 36, None)
    assert found.overall.sequence_ess.value == pytest.approx(1.0)
    assert not found.is_identical


def test_the_worst_tokens_are_named_the_largest_difference_first() -> None:
    rng = np.random.default_rng(0)
    groups = []
    every = []
    for step in (1, 2):
        sampler, trainer = (-rng.exponential(1.0, (4, 9)) for _ in range(2))
        groups.append(tokens_of(*map(both, sampler, trainer), step=step))
        every += [(abs(trainer[row, at] - sampler[row, at]), step, row, at) for row in range(4) for at in range(9)]
    worst = sampler_mismatch(run_of(*groups), FEW).worst
    assert [(token.step, token.row, token.position) for token in worst] == [
        (step, row, at) for _, step, row, at in sorted(every, reverse=True)[:NUM_WORST]
    ]


def test_of_equal_differences_the_first_are_named() -> None:
    group = tokens_of(both([-1.0] * 30, [-2.0] * 30))
    worst = sampler_mismatch(run_of(group), FEW).worst
    assert [token.position for token in worst] == list(range(NUM_WORST))


def test_a_trainer_that_took_over_the_samplers_values_is_told() -> None:
    found = sampler_mismatch(run_of(tokens_of(both([-1.0, -2.0], [-1.0, -2.0]))), FEW)
    assert found.is_identical
    assert found.worst == ()


def test_steps_without_data_are_left_out_and_rows_counted() -> None:
    run = run_of(
        group_of([1, 0], step=1),
        tokens_of(both([-1.0], [-1.1]), both([-1.0], [math.nan]), step=2),
    )
    found = sampler_mismatch(run, FEW)
    assert [row.step for row in found.by_step] == [2]
    assert found.set_aside == {
        "no log-probabilities of the sampler": 2,
        "a log-probability that is missing, NaN or infinite": 1,
    }


def test_a_log_without_any_has_no_numbers() -> None:
    found = sampler_mismatch(run_of(group_of([1, 0])), FEW)
    assert (found.overall, found.by_step) == (None, ())


@pytest.mark.parametrize(("log", "tokens", "gap"), [("nemo_rl", 9, 0.01), ("prime_rl_tokens", 4, 0.005)])
def test_logs_of_trainers_that_keep_both(log: str, tokens: int, gap: float) -> None:
    found = sampler_mismatch(read_run(REPOSITORY / "fixtures" / "logs" / log), FEW)
    assert found.overall is not None
    assert found.overall.num_tokens == tokens
    assert found.overall.logprob_gap.value == pytest.approx(gap)
