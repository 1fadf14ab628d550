"""What is said of prompts that work for or against each other."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.findings.rank.interference import interference_findings
from gradscope.results.ranks.interference import Interference


def of_step(step: int, transfer: Estimate, advantage: str = "logged") -> Interference:
    hurt = Estimate(value=0.75, low=0.6, high=0.9)
    return Interference(step=step, advantage=advantage, frac_hurt=hurt, cosine=Estimate.exact(-0.1), transfer=transfer)


AGAINST, FOR = Estimate(value=-0.4, low=-0.7, high=-0.1), Estimate(value=1.5, low=0.2, high=2.8)
OPEN = Estimate(value=-0.4, low=-0.9, high=0.1)


def test_the_last_step_is_told_where_its_interval_leaves_zero_out() -> None:
    (said,) = interference_findings([of_step(1, FOR), of_step(2, AGAINST), of_step(2, FOR, "sign")])
    assert said == (
        "At step 2 the gradients of the other prompts undo a part of what a prompt's own does for its correct "
        "answers: transfer -0.40 [-0.70, -0.10], and 75.0 % of the pairs of prompts hurt (advantage logged, to first "
        "order)."
    )
    assert "add to what" in interference_findings([of_step(2, FOR)])[0]


def test_nothing_is_said_of_what_is_open() -> None:
    assert interference_findings([]) == ()
    assert interference_findings([of_step(1, FOR), of_step(2, OPEN)]) == ()
    assert interference_findings([of_step(2, Estimate.undefined_because("2 groups are too few"))]) == ()
