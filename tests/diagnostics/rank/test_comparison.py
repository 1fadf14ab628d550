"""Ranks that can and cannot be told apart, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

from gradscope.diagnostics.rank.comparison import compare_formulations
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.estimate import Estimate
from gradscope.findings.rank.formulations import update_findings
from gradscope.findings.rank.ranks import rank_findings
from gradscope.results.rank import BaselineNoise, FormulationUpdate, GradientSpectrum
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

GROUPS = [f"g{group}" for group in range(12) for _ in range(4)]
REWARDS = [0.0, 1.0, 1.0, 0.0] * 4 + [0.0, 1.0, 0.0, 0.0] * 4 + [1.0, 1.0, 1.0, 0.0] * 4


def spectra(*names: str) -> list[GradientSpectrum]:
    rows, _ = make_rows(REWARDS, GROUPS)
    return [spectrum for name in names for spectrum in step_spectra(rows, name, None, by_group=False)[0]]


def test_formulations_that_differ_by_a_factor_are_not_compared() -> None:
    assert compare_formulations(spectra("dr_grpo", "rloo")) == ()


def test_a_formulation_that_drops_rows_is_told_apart() -> None:
    (found,) = compare_formulations(spectra("dr_grpo", "positive_only"))
    assert (found.first, found.second, found.group_size, found.step) == ("dr_grpo", "positive_only", 4, 3)
    assert found.difference.high < 0
    assert "Paired by group, the rank under dr_grpo differs" in " ".join(rank_findings((), (), (), [found]))


def test_a_difference_of_ranks_of_four_rows_is_at_most_three() -> None:
    """Five groups, four with one rank under both and a fifth with all there is: Student's interval would end beyond."""

    def ranked(advantage: str, ranks: list[float]) -> list[GradientSpectrum]:
        (one, *_) = [spectrum for spectrum in spectra("dr_grpo") if spectrum.label.group_id is not None]
        return [
            replace(
                one,
                label=replace(one.label, advantage=advantage, group_id=f"g{place}"),
                ranks=replace(one.ranks, effective_rank=Estimate.exact(rank)),
            )
            for place, rank in enumerate(ranks)
        ]

    (found,) = compare_formulations(ranked("dr_grpo", [1.0] * 5) + ranked("sign", [4.0, 4.0, 4.0, 4.0, 1.0]))
    assert found.difference.value == 2.4
    assert found.difference.high == 3.0


def test_nothing_is_compared_without_groups() -> None:
    assert compare_formulations([]) == ()


def test_formulations_without_a_common_live_group_have_no_difference() -> None:
    rows, _ = make_rows([1.0] * 4 + [0.0] * 4, ["a"] * 4 + ["b"] * 4)
    both = [s for name in ("positive_only", "negative_only") for s in step_spectra(rows, name, None, by_group=False)[0]]
    (found,) = compare_formulations(both)
    assert found.difference.undefined == "no group is live under both"


def test_steps_are_told_apart_or_not() -> None:
    first, second = (step_spectra(make_rows(REWARDS, GROUPS)[0], "dr_grpo", None, by_group=False)[1][0] for _ in "ab")
    low = replace(second, step=9, effective_rank=Estimate(value=1.2, low=1.1, high=1.3, num_units=12))
    assert "it fell by -" in " ".join(rank_findings([first, low], (), ()))
    assert "it rose by " in " ".join(rank_findings([replace(low, step=1), first], (), ()))
    assert "cannot be told apart" in " ".join(rank_findings([first, replace(second, step=9)], (), ()))


def update(**changes: object) -> FormulationUpdate:
    one = Estimate.exact(1.0)
    fields = {
        "step": 3,
        "advantage": "sign",
        "update_norm": one,
        "cancellation": one,
        "between_groups": one,
        "class_subspace_energy": one,
        "signal_to_noise": Estimate.exact(2.0),
        "critical_batch_size": Estimate.exact(4.0),
        "group_cosine": one,
        "noise_within": one,
        "alignment": {"pass@4": Estimate(value=-0.3, low=-0.6, high=0.1)},
        "cosines": {},
    }
    return FormulationUpdate(**{**fields, **changes})


def noise(**ratios: Estimate) -> BaselineNoise:
    return BaselineNoise(
        step=None,
        group_id=None,
        num_groups=8,
        pass_rate=0.6,
        optimal_baseline=Estimate.exact(0.2),
        reward_norm_correlation=Estimate.exact(-0.4),
        relative_noise=ratios,
    )


def test_a_formulation_that_leaves_the_gradient_of_pass_at_k_is_named() -> None:
    sentences = " ".join(update_findings([update()], []))
    assert "at 1 of 1 steps" in sentences
    assert "does not follow the gradient of pass@4 under sign (-0.30)" in sentences


def test_a_better_baseline_is_named_only_where_it_can_be_told() -> None:
    (told,) = update_findings([], [noise(zero=Estimate(value=0.5, low=0.3, high=0.8))])
    assert "zero has 50% less gradient noise than leave_one_out" in told
    (alike,) = update_findings([], [noise(zero=Estimate(value=0.9, low=0.5, high=1.6))])
    assert "no baseline can be told from leave_one_out" in alike
    (hindsight,) = update_findings([], [noise(optimal=Estimate(value=0.1, low=0.05, high=0.2))])
    assert "no baseline can be told from leave_one_out" in hindsight


def test_nothing_measured_says_nothing() -> None:
    assert update_findings([], []) == ()
    assert rank_findings((), (), ()) == ()
