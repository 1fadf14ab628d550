from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.diagnostics.inputs.tolerance import GRAD_NORM_TOLERANCE
from gradscope.estimate import Estimate
from gradscope.findings.rank.headline import MOST_FINDINGS, NORM_MATCHES, rank_headline
from gradscope.findings.rank.ranks import norm_findings
from gradscope.results.rank import RankReport
from gradscope.results.ranks.curves import RankCurvePoint
from gradscope.results.ranks.heldout import HeldoutTransfer
from gradscope.results.replay import LogprobDifference
from tests.render.examples import rank_report, weight_report

REPORT = rank_report()
FIRST = next(p for p in REPORT.curve if (p.advantage, p.group_size, p.step) == ("logged", 8, 1))
RANK = Estimate(value=2.5, low=2.25, high=2.75, num_units=9)
STEP = replace(REPORT.steps[0], grad_norm=Estimate.exact(0.5), logged_grad_norm=0.5)


def point(step: int = 1, difference: Estimate | None = None, rank: Estimate = RANK) -> RankCurvePoint:
    scores = FIRST.nulls["unweighted"]
    nulls = FIRST.nulls | {"unweighted": replace(scores, difference=difference or scores.difference)}
    return replace(FIRST, step=step, effective_rank=rank, nulls=nulls)


def report(*curve: RankCurvePoint, norm: float | None = 0.5) -> RankReport:
    return replace(REPORT, curve=curve, steps=(replace(STEP, logged_grad_norm=norm),))


def test_a_norm_matches_where_replay_says_so() -> None:
    assert NORM_MATCHES == GRAD_NORM_TOLERANCE


def test_the_verdict_has_the_rank_beside_both_ceilings() -> None:
    verdict, *_ = rank_headline(report(point(1), point(9)))
    assert verdict.startswith(
        "At step 9 a group's gradient spans 2.50 [2.25, 2.75] of at most 8 directions, 0.80 [0.70, 0.95] of what "
        "unrelated rows of the same norms would span (advantage logged, 11 live groups). Without advantages the same "
        "rollouts span 5.90; "
    )


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Estimate.exact(-1.0), "; the groups are too few to say whether the advantages change that."),
        (Estimate(value=-0.1, low=-0.4, high=0.2), "what the advantages change (-0.10 [-0.40, +0.20]) cannot be told"),
        (Estimate(value=-1.0, low=-1.4, high=-0.5), "; the advantages change that by -1.00 [-1.40, -0.50]."),
    ],
)
def test_the_verdict_says_whose_doing_the_rank_is(difference: Estimate, words: str) -> None:
    assert words in rank_headline(report(point(difference=difference)))[0]


def test_one_live_group_is_one() -> None:
    assert "1 live group)" in rank_headline(report(replace(point(), num_dead=15)))[0]


def test_a_run_of_dead_groups_has_a_verdict_too() -> None:
    dead = replace(point(rank=Estimate.undefined_because("dead")), num_dead=16, nulls={})
    verdict, *findings = rank_headline(report(dead))
    assert verdict == "No group of these steps has a gradient under the advantage, so there is no rank."
    assert findings == ["16 of 16 groups have zero advantage throughout: their gradient is zero and has no rank."]


def test_what_makes_the_ranks_doubtful_comes_before_the_rest() -> None:
    def first_finding(found: RankReport) -> str:
        return rank_headline(found)[1]

    two = (point(1), point(9))
    assert "10 of 32 groups have zero advantage" in first_finding(report(*two))
    assert "10 of 32 groups have zero advantage" in first_finding(report(*two, norm=0.5 * (1 + 5e-6)))
    assert "by at most 2.0e-02" in first_finding(report(*two, norm=0.5 / 0.98))
    assert "logged no grad_norm" in first_finding(report(*two, norm=None))
    assert "no finite grad_norm" in first_finding(report(*two, norm=float("nan")))


def test_other_weights_are_a_problem_and_the_right_ones_are_no_news() -> None:
    fits = LogprobDifference(num_tokens=100, mean=0.0, max=1e-6, bound=0.1, frac_beyond=0.0)
    off = replace(fits, max=2.0, frac_beyond=0.25)
    said = {
        name: " ".join(rank_headline(replace(report(point()), steps=(replace(STEP, logprob_difference=found),))))
        for name, found in (("fits", fits), ("off", off))
    }
    assert "differ from these weights' by more than 0.1 at 25.0% of 100 tokens" in said["off"]
    assert "log-probabilities" not in said["fits"]


def test_held_out_prompts_that_were_asked_for_come_before_what_is_always_there() -> None:
    numbers = {"frac_hurt": Estimate.exact(0.25), "cosine": Estimate.exact(0.1)}
    transfer = Estimate(value=0.4, low=0.1, high=0.7)
    row = HeldoutTransfer(step=9, advantage="logged", num_groups=5, num_heldout=62, transfer=transfer, **numbers)
    plain, asked = report(point(1), point(9)), replace(report(point(1), point(9)), heldout=(row,))
    verdict, first, *others = rank_headline(asked)
    assert first.startswith("Step 9 raises the correct answers of the 62 held-out prompts")
    assert rank_headline(plain)[: 1 + len(others)] == (verdict, *others)


def test_no_more_than_three_findings_follow() -> None:
    broken = replace(REPORT.steps[0], logged_grad_norm=float("inf"))
    assert len(rank_headline(replace(REPORT, steps=(broken,)))) <= 1 + MOST_FINDINGS


def test_other_rows_lead_with_their_own_findings() -> None:
    assert rank_headline(replace(weight_report(), findings=tuple("ABCDEF"))) == tuple("ABCD")
    assert rank_headline(weight_report()) == ()


def test_a_problem_of_other_rows_is_the_first_finding_and_said_once() -> None:
    off = replace(weight_report(), steps=(replace(STEP, logged_grad_norm=0.25),))
    (problem,) = norm_findings(off.steps)
    assert rank_headline(replace(off, findings=(*"ABCDEF", problem))) == ("A", problem, "B", "C")
