from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.findings.rank.tokens import token_findings
from gradscope.results.ranks.curves import TokenRankPoint
from gradscope.results.ranks.tokens import TokenMethod


def point(
    step: int,
    rank: float | None,
    *,
    advantage: str = "logged",
    method: TokenMethod = "exact",
    energy_error: float | None = None,
) -> TokenRankPoint:
    known = Estimate.undefined_because("no weight") if rank is None else Estimate.exact(rank)
    return TokenRankPoint(
        step=step,
        advantage=advantage,
        group_size=8,
        method=method,
        num_groups=16,
        num_dead=6,
        num_rows=Estimate.exact(120.0),
        frac_seen=0.25,
        effective_rank=known,
        stable_rank=known,
        participation_ratio=known,
        two_direction_energy=known,
        energy_error=energy_error,
    )


def test_a_rank_of_tokens_stands_beside_their_number() -> None:
    assert token_findings([point(1, 90.0), point(9, 30.0), point(9, 60.0, advantage="sign")]) == (
        "At step 9 the 120 tokens of a live group span 30.0 directions by effective rank (advantage logged, mean over "
        "10 live groups).",
    )


def test_without_a_logged_advantage_another_is_named() -> None:
    assert "(advantage sign, mean over" in token_findings([point(1, 60.0, advantage="sign")])[0]


def test_a_sample_and_a_sketch_say_what_they_cost() -> None:
    sampled = token_findings([point(1, 30.0, method="sampled")])
    assert sampled[1].startswith("Only 25% of the tokens were measured, drawn at random;")
    assert sampled[1].endswith("--max-tokens N takes more, --sketch K all.")
    sketched = token_findings([point(1, 30.0, method="sketch", energy_error=0.0313)])
    assert sketched[1].startswith("Rows were sketched: each squared singular value is known to 3.1% of their sum")


def test_steps_without_a_weighted_token_have_no_rank() -> None:
    expected = "No token of these steps has a weight under these advantages: their matrices are zero."
    assert token_findings([point(1, None)]) == token_findings([]) == (expected,)
