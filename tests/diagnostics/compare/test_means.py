import numpy as np
import pytest

from gradscope.diagnostics.compare import means
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import LOGS

STEPS = tuple(range(1, 41))


def test_every_step_counts_alike_in_the_mean_of_groups() -> None:
    table = reward_table(read_run(LOGS / "generic.csv", rewards_only=True).groups)
    sums, steps = table.sums(table.reward), np.unique(table.step)
    of_steps = [sums[table.step == step].sum() / table.size[table.step == step].sum() for step in steps]
    mean = means.reward_over_steps(table)
    assert mean.mean == pytest.approx(np.mean(of_steps))
    assert mean.estimate.value == pytest.approx(mean.mean)
    assert means.dead_over_steps(table).estimate.ends[1] <= 1.0


def test_courses_of_the_same_steps_are_compared_step_by_step() -> None:
    rising = np.linspace(0.0, 5.0, 40)
    noise = np.random.default_rng(0).normal(size=40) * 0.01
    before, after = means.SeriesMean(STEPS, rising), means.SeriesMean(STEPS, rising + 0.1 + noise)
    same_steps = means.changes({"kl": before}, {"kl": after})["kl"]
    assert same_steps.value == pytest.approx(0.1, abs=0.01)
    assert same_steps.side_of_zero == 1
    other_steps = means.changes({"kl": before}, {"kl": means.SeriesMean(tuple(range(2, 42)), after.values)})["kl"]
    assert other_steps.side_of_zero == 0  # what both do over their course is noise there
    # of shares a trend is at most one
    assert means.SeriesTrend(STEPS, np.linspace(0.0, 1.0, 40)).ends == (-1.0, 1.0)
    assert means.SeriesTrend(STEPS, np.linspace(0.0, 2.0, 40)).estimate.value == pytest.approx(2.0)
    assert means.SeriesTrend((1, 2), np.array([0.0, 1.0])).estimate.undefined


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_runs_part_where_one_collapses(side: float) -> None:
    rng = np.random.default_rng(1)
    first = {step: 0.9 + 0.05 * rng.normal() for step in range(1, 61)}
    second = {step: (0.9 if step < 20 else 0.1) + 0.05 * rng.normal() for step in range(1, 61)}
    moved = means.parting(first, second) if side < 0 else means.parting(second, first)
    assert moved is not None
    assert moved.step == 20
    assert (moved.before, moved.after, moved.end) == pytest.approx((0.0, side * 0.8, side * 0.8), abs=0.1)
    few = {step: value for step, value in second.items() if step < 40}
    assert means.parting(first, few) is None


def test_runs_that_wander_seldom_part() -> None:
    rng, num = np.random.default_rng(0), 0
    for _ in range(40):
        series = []
        for _ in range(2):
            values = rng.normal(size=100)
            for step in range(1, 100):  # correlated by 0.9
                values[step] = 0.9 * values[step - 1] + 0.436 * values[step]
            series.append(dict(enumerate(values.tolist())))
        num += means.parting(*series) is not None
    assert num <= 5  # 5 % of 200
