from __future__ import annotations

from dataclasses import replace

from gradscope.estimate import Estimate
from gradscope.findings.weights import gradient_update_findings, weight_update_findings
from gradscope.results.update import GradientAndUpdate, UpdateTrajectory, WeightUpdate

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
    )


def test_principal_directions_stand_beside_a_random_change() -> None:
    overlaps = [update(10.0, overlap=Estimate.exact(share)) for share in (0.04, 0.08)]
    assert weight_update_findings([*overlaps, update(10.0)], [WHOLE])[-1] == (
        "On average 6.0% of a change lies in the principal directions of the initial weights; a random change would "
        "have 1.0% there."
    )


def test_a_single_checkpoint_has_no_trajectory() -> None:
    alone = replace(WHOLE, top_energy=UNDEFINED, linear_growth=UNDEFINED)
    (sentence,) = weight_update_findings([update(10.0)], [alone])
    assert sentence.startswith("After 40 updates")


def test_gradients_and_changes_are_averaged_over_the_weights_that_have_both() -> None:
    pairs = [pair(Estimate.exact(99.0), step=1), pair(Estimate.exact(8.0)), pair(Estimate.exact(12.0)), pair(UNDEFINED)]
    assert gradient_update_findings(pairs) == (
        "The gradient of step 21 has effective rank 10.0 on average over 2 weights, their change from 20 to 40 updates "
        "30.0, and unrelated entries 50.0: a rank of one says nothing of the other.",
    )
    assert gradient_update_findings([pair(UNDEFINED)]) == gradient_update_findings([]) == ()
