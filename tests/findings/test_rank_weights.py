from __future__ import annotations

from dataclasses import replace

from gradscope.estimate import Estimate
from gradscope.findings.rank_weights import (
    adapter_findings,
    gradient_update_findings,
    idle_adapter_findings,
    optimizer_findings,
    weight_update_findings,
)
from gradscope.results.update import GradientAndUpdate, UpdateTrajectory, WeightUpdate
from tests.render.rank_examples import adapter_state, optimizer_steps

UNDEFINED = Estimate.undefined_because("the matrix is zero")
WHOLE = UpdateTrajectory(
    tensor=None,
    num_updates=(20, 40),
    effective_rank=Estimate.exact(1.5),
    top_energy=Estimate.exact(0.95),
    linear_growth=Estimate.exact(0.9),
    walk_effective_rank=Estimate.exact(1.8),
    walk_top_energy=Estimate.exact(0.85),
    walk_linear_growth=Estimate.exact(0.8),
)


def update(rank: float, last: int = 40, *, first: int = 0, overlap: Estimate = UNDEFINED) -> WeightUpdate:
    return WeightUpdate(
        tensor="q_proj",
        first=first,
        last=last,
        shape=(64, 64),
        update_size=Estimate.exact(0.1),
        singular_values=(1.0,),
        effective_rank=Estimate.exact(rank),
        gaussian=Estimate.exact(2 * rank),
        stable_rank=Estimate.exact(1.0),
        top_energy=Estimate.exact(0.5),
        principal_overlap=overlap,
        principal_null=UNDEFINED if overlap is UNDEFINED else Estimate.exact(0.01),
        spectrum_drift=UNDEFINED,
        spectrum_drift_null=UNDEFINED,
        principal_angle=UNDEFINED,
        principal_angle_null=UNDEFINED,
        bfloat16_changed=Estimate.exact(0.5),
    )


def pair(gradient: Estimate, step: int = 21) -> GradientAndUpdate:
    return GradientAndUpdate(
        step=step,
        tensor="q_proj",
        first=20,
        last=40,
        gradient_rank=gradient,
        gradient_top_energy=Estimate.exact(0.5),
        update_rank=Estimate.exact(30.0),
        update_top_energy=Estimate.exact(0.2),
        gaussian=Estimate.exact(50.0),
    )


def test_the_trajectory_stands_beside_a_random_walk() -> None:
    sentences = weight_update_findings(
        [update(10.0), update(20.0), update(99.0, last=20), update(99.0, first=20)], [WHOLE]
    )
    assert sentences == (
        "Over 2 checkpoints one direction holds 95% of the updates' energy (a random walk: 85%), and a straight line "
        "90% (a random walk: 80%).",
        "After 40 updates the change of a matrix has effective rank 15.0 on average over 2 matrices; unrelated entries "
        "would give 30.0.",
        "bfloat16 sees 50.0 % of the 8,192 entries of these matrices change.",
    )


def test_principal_directions_stand_beside_a_random_change() -> None:
    overlaps = [update(10.0, overlap=Estimate.exact(share)) for share in (0.04, 0.08)]
    assert weight_update_findings([*overlaps, update(10.0)], [WHOLE])[-2] == (
        "On average 6.0% of a change lies in the principal directions of the initial weights; a random change would "
        "have 1.0% there."
    )


def test_a_single_checkpoint_has_no_trajectory() -> None:
    alone = replace(WHOLE, top_energy=UNDEFINED, linear_growth=UNDEFINED)
    unknown = replace(update(10.0), bfloat16_changed=UNDEFINED)
    (sentence,) = weight_update_findings([unknown], [alone])
    assert sentence.startswith("After 40 updates")


def test_gradients_and_changes_are_averaged_over_the_weights_that_have_both() -> None:
    pairs = [pair(Estimate.exact(99.0), step=1), pair(Estimate.exact(8.0)), pair(Estimate.exact(12.0)), pair(UNDEFINED)]
    assert gradient_update_findings(pairs) == (
        "The gradient of step 21 has effective rank 10.0 on average over 2 weights, their change from 20 to 40 updates "
        "30.0, and unrelated entries 50.0: a rank of one says nothing of the other.",
    )
    assert gradient_update_findings([pair(UNDEFINED)]) == gradient_update_findings([]) == ()


def test_singular_values_and_directions_stand_beside_an_unrelated_change() -> None:
    turned = replace(
        update(10.0),
        spectrum_drift=Estimate.exact(0.15),
        spectrum_drift_null=Estimate.exact(0.117),
        principal_angle=Estimate.exact(4.06),
        principal_angle_null=Estimate.exact(2.94),
    )
    assert weight_update_findings([turned, update(10.0)], [WHOLE])[-2] == (
        "Of a change 15.0% is in the singular values on average (an unrelated one of its size: 11.7%), and the "
        "principal directions turn by 4.1 degrees (2.9)."
    )


def test_an_adapters_change_is_held_against_factors() -> None:
    sentence = weight_update_findings([update(6.0)], [WHOLE], of_adapter=True)[1]
    assert "unrelated factors would give 12.0" in sentence


def test_an_adapter_that_does_nothing_yet_is_said() -> None:
    idle = replace(adapter_state(20), b_norm=Estimate.exact(0.0), effective_rank=UNDEFINED)
    assert idle_adapter_findings([adapter_state(0), idle, adapter_state(20)]) == (
        "After 20 updates B is still zero in 1 of 2 matrices: there the adapter adds nothing.",
    )
    assert adapter_findings([idle]) == ()
    assert idle_adapter_findings([adapter_state(20)]) == idle_adapter_findings([]) == adapter_findings([]) == ()


def test_an_adapter_stands_beside_unrelated_factors() -> None:
    assert adapter_findings([adapter_state(0), adapter_state(20)]) == (
        "After 20 updates B is zero nowhere; B A has effective rank 6.4 of at most 8 and 0.37 of the norm of its "
        "factors on average (unrelated factors: 7.8 and 0.35).",
    )


def test_optimizers_are_compared_over_all_matrices() -> None:
    (sentence,) = optimizer_findings(optimizer_steps(41))
    assert sentence == (
        "From the gradient of step 41 a fresh Adam steps at cosine 0.48 with SGD, Muon at 0.44; at the logged learning "
        "rate bfloat16 sees 86.0 % of the entries move under Adam, and 54.0 % under an SGD step of the same size."
    )
    unknown = [replace(one, bfloat16_moved=UNDEFINED) for one in optimizer_steps(41)]
    assert optimizer_findings(unknown) == (
        "From the gradient of step 41 a fresh Adam steps at cosine 0.48 with SGD, Muon at 0.44.",
    )
    assert optimizer_findings([]) == ()
