from __future__ import annotations

import pytest

from gradscope.diagnostics.logged.staleness import staleness
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.diagnostics.logged.made_up_tokens import both, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of

FEW = Resampling(num_resamples=100)


def stale_run() -> object:
    """Lags 0, 2, 2 at step 3 and 0, 3 at step 4; the gap of a token is a tenth of the lag."""
    return run_of(
        tokens_of(
            both([-1.0], [-1.0], policy_versions=(2, 2)),
            both([-1.0, -1.0], [-1.2, -0.8], policy_versions=(0, 2)),
            both([-1.0], [-1.2], policy_versions=(0, 0)),
            step=3,
        ),
        tokens_of({"policy_versions": (3, 3)}, both([-1.0], [-1.3], policy_versions=(0, 1)), step=4, prompt="q"),
    )


def test_lags_are_those_of_the_first_token() -> None:
    found = staleness(stale_run(), FEW)
    assert found.overall is not None
    assert found.overall.num_rollouts == 5
    assert found.overall.mean_lag.value == pytest.approx((0 + 2 + 2 + 0 + 3) / 5)
    assert found.overall.max_lag.value == 3.0
    assert found.overall.frac_above_1.value == pytest.approx(3 / 5)
    assert found.overall.frac_mixed.value == pytest.approx(2 / 5)
    assert [(row.step, row.mean_lag.value) for row in found.by_step] == [(3, pytest.approx(4 / 3)), (4, 1.5)]


def test_each_lag_has_its_share_and_its_gap() -> None:
    rows = staleness(stale_run(), FEW).by_lag
    assert [(row.lag, row.num_rollouts, row.share) for row in rows] == [(0, 2, 0.4), (2, 2, 0.4), (3, 1, 0.2)]
    assert [row.logprob_gap.value for row in rows] == pytest.approx([0.0, 0.2, 0.3])


def test_a_lag_without_log_probabilities_says_so() -> None:
    (row,) = staleness(run_of(tokens_of({"policy_versions": (0, 0)})), FEW).by_lag
    assert row.logprob_gap.undefined == "no rollout of this lag has log-probabilities of both sampler and trainer"


def test_rollouts_that_no_update_used_have_no_lag() -> None:
    run = run_of(tokens_of({"policy_versions": (0, 0), "mask": (False,)}, {"policy_versions": (1, 1)}, step=2))
    found = staleness(run, FEW)
    assert found.overall is not None
    assert found.overall.num_rollouts == 1


def test_versions_from_the_future_are_no_lag() -> None:
    found = staleness(run_of(tokens_of({"policy_versions": (7, 9)}, step=2)), FEW)
    assert found.overall is None
    assert "newer than its steps" in found.contradiction


def test_no_versions_are_nothing() -> None:
    found = staleness(run_of(group_of([1, 0])), FEW)
    assert (found.overall, found.contradiction) == (None, "")


@pytest.mark.parametrize(("log", "rollouts"), [("prime_rl", 2), ("tinker", 8)])
def test_logs_that_name_the_weights(log: str, rollouts: int) -> None:
    found = staleness(read_run(REPOSITORY / "fixtures" / "logs" / log), FEW)
    assert found.overall is not None
    assert (found.overall.num_rollouts, found.overall.max_lag.value) == (rollouts, 0.0)
