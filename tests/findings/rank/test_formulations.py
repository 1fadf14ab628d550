from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.findings.rank.formulations import update_findings
from gradscope.results.rank import BaselineNoise, FormulationUpdate


def update(advantage: str, step: int, ratio: float | None, cosine: Estimate | None = None) -> FormulationUpdate:
    unused = Estimate.undefined_because("not needed here")
    return FormulationUpdate(
        step=step,
        advantage=advantage,
        update_norm=unused,
        cancellation=unused,
        between_groups=unused,
        class_subspace_energy=unused,
        signal_to_noise=unused if ratio is None else Estimate.exact(ratio),
        critical_batch_size=unused,
        group_cosine=unused,
        noise_within=unused,
        alignment={} if cosine is None else {"pass@8": cosine},
        cosines={},
    )


def noise(optimum: Estimate, **ratios: Estimate) -> BaselineNoise:
    return BaselineNoise(
        step=None,
        group_id=None,
        num_groups=9,
        pass_rate=0.75,
        optimal_baseline=optimum,
        reward_norm_correlation=Estimate.exact(0.0),
        relative_noise=ratios,
    )


def between(low: float, high: float) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high)


def test_signal_to_noise_is_that_of_the_logged_advantage() -> None:
    updates = [update("sign", 1, 9.0), *(update("logged", step, ratio) for step, ratio in ((1, 0.5), (2, 1.5), (3, 4)))]
    (sentence,) = update_findings(updates, [])
    assert sentence == (
        "The expected update under logged exceeds its own noise (signal to noise above 1) at 2 of 3 steps; median 1.50."
    )


def test_an_update_leaves_pass_at_k_only_where_its_interval_says_so() -> None:
    apart, maybe = between(0.5, 0.7), between(0.5, 0.95)
    updates = [update("sign", 2, None, apart), update("grpo", 2, None, maybe), update("rloo", 1, None, apart)]
    assert update_findings(updates, []) == (
        "At step 2 the expected update does not follow the gradient of pass@8 under sign (0.60).",
    )


def test_the_quietest_baseline_that_differs_measurably_is_named() -> None:
    ratios = {"zero": between(1.2, 1.8), "shrinkage": between(0.5, 0.75), "optimal": between(0.1, 0.2)}
    assert update_findings([], [noise(Estimate.exact(0.25), **ratios)]) == (
        "The optimal baseline of a mixed group is 0.25 on average, at a mean reward of 0.75; of the baselines that "
        "differ measurably, shrinkage has 38% less gradient noise than leave_one_out (ratio 0.62 [0.50, 0.75]).",
    )


def test_a_baseline_whose_interval_holds_one_cannot_be_told_apart() -> None:
    ratios = {"zero": between(0.8, 1.2), "shrinkage": Estimate.exact(0.3)}
    assert update_findings([], [noise(Estimate.undefined_because("no group is mixed"), **ratios)]) == (
        "No group shows an optimal baseline; no baseline can be told from leave_one_out by the noise of its gradient.",
    )


def test_nothing_measured_is_nothing_said() -> None:
    assert update_findings([], []) == ()
