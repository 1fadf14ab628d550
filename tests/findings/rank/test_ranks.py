from __future__ import annotations

from dataclasses import replace

from gradscope.estimate import Estimate
from gradscope.findings.rank.ranks import rank_findings, size_findings
from gradscope.results.rank import RankComparison
from gradscope.results.ranks.curves import RankCurvePoint, SizeChange
from tests.render.examples import rank_report, weight_report

REPORT = rank_report()
FIRST = next(p for p in REPORT.curve if (p.advantage, p.group_size, p.step) == ("logged", 8, 1))


def point(rank: Estimate, step: int = 1, *, difference: Estimate | None = None, num_dead: int = 5) -> RankCurvePoint:
    nulls = dict(FIRST.nulls)
    if difference is not None:
        nulls["unweighted"] = replace(nulls["unweighted"], difference=difference)
    return replace(FIRST, effective_rank=rank, step=step, nulls=nulls, num_dead=num_dead)


def around(value: float, half: float = 0.25) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half, num_units=9)


def test_a_rank_stands_beside_the_rows_that_bound_it() -> None:
    sentence = rank_findings([point(around(2.5))], [], [])[0]
    assert sentence == (
        "At step 1 the gradient matrix of a live group has effective rank 2.50 [2.25, 2.75] of at most 8 rows "
        "(advantage logged, mean over 11 live groups)."
    )


def test_advantages_change_the_rank_where_the_interval_says_so() -> None:
    changed = " ".join(rank_findings([point(around(2.5), difference=around(-1.0))], [], []))
    assert "The advantages change the rank by -1.00 [-1.25, -0.75]; the rest is the policy's own geometry." in changed
    same = " ".join(rank_findings([point(around(2.5), difference=around(-0.1))], [], []))
    assert "What the advantages change (-0.10 [-0.35, +0.15]) cannot be told from nothing." in same
    few = " ".join(rank_findings([point(around(2.5), difference=Estimate.exact(-1.0))], [], []))
    assert "these groups are too few to say whether the advantages change the rank." in few


def test_steps_are_told_apart_where_their_difference_is() -> None:
    def over_time(last: float) -> str:
        return " ".join(rank_findings([point(around(2.0)), point(around(last), step=9)], [], []))

    assert "went from 2.00 [1.75, 2.25] to 4.00 [3.75, 4.25]: it rose by 2.00 [1.65, 2.35]." in over_time(4.0)
    assert "it fell by -1.00 [-1.35, -0.65]." in over_time(1.0)
    assert "the difference 0.20 [-0.15, 0.55] may be zero, so these steps cannot be told apart." in over_time(2.2)


def test_a_rank_without_an_interval_is_compared_with_no_other_step() -> None:
    text = " ".join(rank_findings([point(Estimate.exact(2.0)), point(around(4.0), step=9)], [], []))
    assert "went from" not in text


def test_other_rollouts_of_the_same_prompts_have_their_own_interval() -> None:
    given = replace(point(around(2.5)), given_prompts=around(2.5, 0.125))
    text = " ".join(rank_findings([given], [], []))
    assert "Other rollouts of these very prompts would leave it within [2.38, 2.62];" in text
    other = replace(given, given_prompts=around(2.6, 0.125))
    assert "very prompts" not in " ".join(rank_findings([other], [], []))


def test_formulations_are_told_apart_by_their_paired_difference() -> None:
    comparisons = [
        RankComparison(step=9, group_size=8, first="logged", second=name, difference=difference)
        for name, difference in (
            ("sign", around(1.0)),
            ("rloo", around(0.1)),
            ("tasa", Estimate.undefined_because("dead")),
        )
    ]
    apart, alike = rank_findings([], [], [], comparisons)
    assert apart == (
        "Paired by group, the rank under logged differs from that under sign (+1.00), each at 95 %. A rank of rows "
        "sees how unequal the advantages are, never their signs."
    )
    assert alike == "The ranks under logged and under rloo cannot be told apart at step 9."


def test_dead_groups_of_the_logged_advantage_are_counted() -> None:
    text = " ".join(rank_findings([point(around(2.5), num_dead=5)], [], []))
    assert "5 of 16 groups have zero advantage throughout: their gradient is zero and has no rank." in text
    assert "zero advantage" not in " ".join(rank_findings([point(around(2.5), num_dead=0)], [], []))


def test_the_trainers_norm_is_what_the_spectra_rest_on() -> None:
    first, second, third = REPORT.steps
    shifted = replace(second, logged_grad_norm=0.4)
    sentences = rank_findings([], [first, shifted, third], [])
    assert sentences[0] == "On average 31% of the summed row norms survives in the step's gradient; the rest cancels."
    assert sentences[1].endswith("by at most 3.1e-02 (relative) at these 2 steps.")
    assert rank_findings([], [shifted], [])[1].endswith("at this step.")
    broken = rank_findings([], [first, replace(second, logged_grad_norm=float("inf"))], [])[1]
    assert broken == f"At 1 of 2 steps the trainer logged no finite grad_norm, first at step {second.step}: Infinity."
    assert "checked against nothing outside" in rank_findings([], [first], [])[1]


def test_matrices_of_weights_have_a_range() -> None:
    report = weight_report()
    text = rank_findings([], [], report.spectra)[0]
    ranks = [spectrum.ranks.effective_rank.value for spectrum in report.spectra]
    assert text.startswith(f"Effective ranks run from {min(ranks):.2f} (model.layers.")
    assert f"to {max(ranks):.2f} (model." in text
    dead = [
        replace(spectrum, ranks=replace(spectrum.ranks, effective_rank=Estimate.undefined_because("zero")))
        for spectrum in report.spectra
    ]
    assert rank_findings([], [], dead) == ("Every gradient matrix is zero: no rank can be stated.",)


def change(matrix: str, second: int = 8, step: int = 2) -> SizeChange:
    return SizeChange(step=step, advantage="grpo", matrix=matrix, first=2, second=second, difference=around(1.5))


def test_the_change_with_the_group_size_is_said_of_kinds_of_rows_and_of_all_weights_together() -> None:
    """Not of each weight, whose numbers stand in a table; and at the last step and the largest size."""
    changes = [change("rollout", 4, 1), change("rollout"), change("lm_head.weight"), change("all weights")]
    rollouts, weights = size_findings(changes)
    assert rollouts == (
        "On the same 9 prompts at step 2 the rank of rollout rows at R = 8 is +1.50 [+1.25, +1.75] above that at R = 2 "
        "(advantage grpo)."
    )
    assert "the rank of dL/dW, mean over weights, at R = 8" in weights
    undefined = replace(change("token"), difference=Estimate.undefined_because("no group lives at both sizes"))
    assert size_findings([undefined]) == ()


NINE_TENTHS = Estimate.exact(0.9)


def test_what_rollouts_share_adds_up_or_cancels_where_the_interval_says_so() -> None:
    def said(shared: Estimate, rest: Estimate = NINE_TENTHS) -> str:
        return " ".join(rank_findings([replace(FIRST, shared_kept=shared, residual_kept=rest)], [], []))

    assert (
        "What the rollouts of a live group share adds up: on directions of several of them their sum has 2.00 [1.50, "
        "2.50] times the energy of the rows, and 0.90 times on all others (1 for random signs)."
        in said(around(2.0, 0.5))
    )
    assert "share cancels: on directions" in said(around(0.5))
    assert "0.50 [0.25, 0.75] times the energy of the rows (1 for" in said(
        around(0.5), Estimate.undefined_because("none")
    )
    for nothing in (around(1.1), Estimate.exact(0.5), Estimate.undefined_because("none")):
        assert "random signs" not in said(nothing)
