import pytest

from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.errors import UsageError
from tests.diagnostics.made_up_runs import beta_run, findings_of, group_of, run_of, two_steps, with_tokens


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
    assert [row.pass_rate_origin for row in report.predictions] == [
        "the mean of each step",
        "the mean of this log over 4 groups",
    ]
    assert "need 5 different prompts" in report.iid_prediction.undefined
    assert report.predictions[0].iid_prediction == report.iid_prediction
    assert report.gap_decomposition.over_time == report.gap_decomposition.between_prompts == report.jensen_gap


def test_larger_groups_are_forecast() -> None:
    rows = {row.group_size: row for row in degeneracy_of_run(beta_run(), group_sizes=(4, 16, 100)).by_group_size}
    assert {size: row.method for size, row in rows.items()} == {
        4: "unbiased",
        8: "observed",
        16: "forecast",
        100: "forecast",
    }
    assert rows[4].degeneracy.value > rows[8].degeneracy.value > rows[16].degeneracy.value
    assert rows[16].jensen_gap.value == pytest.approx(
        rows[16].degeneracy.value - rows[16].iid_prediction.value, abs=1e-12
    )
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
    assert larger.tokens_per_group.value == pytest.approx(
        larger.group_size * report.starvation.tokens_per_rollout.value
    )
    below = degeneracy_of_run(run, group_sizes=(larger.group_size - 1,)).by_group_size[-1]
    assert below.degeneracy.value > 0.3
    assert resampling.rollouts_per_group.value == pytest.approx(8 * 0.7 / (1 - dead))


def test_a_target_may_be_reached_out_of_reach_or_not_forecast() -> None:
    easy = degeneracy_of_run(beta_run(), options=DegeneracyOptions(target_degeneracy=0.99))
    assert easy.target.plans[1].group_size == 2
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
