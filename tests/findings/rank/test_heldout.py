"""What is said of a step and held-out prompts."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.findings.rank.heldout import heldout_findings
from gradscope.results.ranks.heldout import HeldoutTransfer

UP, DOWN = Estimate(value=0.4, low=0.1, high=0.7), Estimate(value=-0.4, low=-0.7, high=-0.1)
OPEN = Estimate(value=0.1, low=-0.4, high=0.6)
NONE = Estimate.undefined_because("fewer than 3 groups have a gradient")


def of_step(step: int, transfer: Estimate, cosine: Estimate = OPEN, hurt: float | None = 0.25) -> HeldoutTransfer:
    share = NONE if hurt is None else Estimate.exact(hurt)
    numbers = {"frac_hurt": share, "cosine": cosine, "transfer": transfer}
    return HeldoutTransfer(step=step, advantage="logged", num_groups=5, num_heldout=62, **numbers)


def test_the_last_step_is_told_where_its_interval_leaves_zero_out() -> None:
    (said,) = heldout_findings([of_step(1, DOWN), of_step(2, UP), of_step(2, DOWN)])
    assert said == (
        "Step 2 raises the correct answers of the 62 held-out prompts by 0.40 [0.10, 0.70] of what it does to the "
        "answers that it was trained on; 25.0 % of the pairs of a training and a held-out prompt hurt (advantage "
        "logged, to first order)."
    )
    assert "Step 2 lowers" in heldout_findings([of_step(2, DOWN)])[0]


def test_the_cosine_tells_where_the_transfer_does_not() -> None:
    (said,) = heldout_findings([of_step(2, NONE, DOWN)])
    assert said == (
        "The prompts of step 2, each counted alike, point away from the correct answers of the 62 held-out prompts: "
        "mean cosine -0.400 [-0.700, -0.100]; 25.0 % of the pairs of a training and a held-out prompt hurt (advantage "
        "logged, to first order)."
    )
    assert "point towards" in heldout_findings([of_step(2, OPEN, UP)])[0]


def test_nothing_is_said_of_what_is_open() -> None:
    assert heldout_findings([]) == ()
    assert heldout_findings([of_step(2, OPEN)]) == ()
    assert heldout_findings([of_step(2, NONE, NONE, None)]) == ()
