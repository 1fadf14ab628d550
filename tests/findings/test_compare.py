from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.findings.compare import compare_findings
from gradscope.results.compare import ComparedPair, CompareVerdict
from tests.render.examples import comparison


def pair(
    verdict: CompareVerdict = "open",
    value: float = 0.25,
    *,
    num_pairs: int = 8,
    changed: str = "advantage",
    least_detectable: Estimate | None = None,
) -> ComparedPair:
    p_value = {"decides": 0.01, "suggests": 0.03, "open": 0.4}[verdict]
    return ComparedPair(
        first="grpo",
        second="sign",
        changed=changed,
        metric="pass@1",
        difference=Estimate(value=value, low=value - 0.125, high=value + 0.125),
        p_value=p_value,
        p_holm=p_value,
        sign_flip_p_value=p_value,
        sign_flip_p_holm=None if num_pairs < 8 else 0.01 if verdict == "decides" else 0.2,
        verdict=verdict,
        least_detectable=least_detectable or Estimate.exact(0.4),
        spread=0.2,
        num_pairs=num_pairs,
        test="paired t",
        undefined=None,
    )


def compared(*pairs: ComparedPair, left_out: dict[str, str] | None = None) -> str:
    report = replace(comparison(), cells=(), pairs=pairs, num_tests=len(pairs), left_out=left_out or {})
    return " ".join(compare_findings(report))


def test_a_decision_has_direction_size_and_interval() -> None:
    text = compared(pair("decides"))
    assert (
        "pass@1: sign is above grpo by 0.250 (+0.250 [+0.125, +0.375], 8 pairs, corrected p = 0.01 by sign flips)."
    ) in text
    assert "undecided" not in text
    assert "sign is below grpo by 0.250 (-0.250 [" in compared(pair("decides", -0.25))
    # few pairs suggest and do not decide
    unknown = Estimate.undefined_because("a decision needs 8 pairs, there are 5")
    text = compared(pair("suggests", num_pairs=5, least_detectable=unknown))
    assert (
        "pass@1: sign seems above grpo by 0.250 (+0.250 [+0.125, +0.375], 5 pairs, corrected p = 0.03 if differences "
        "are normal), which so few pairs do not decide."
    ) in text
    assert "none could be decided (a decision needs 8 pairs, there are 5). This is no evidence of equality." in text
    assert "which sign flips do not decide (corrected p = 0.2)." in compared(pair("suggests"))


def test_what_is_open_says_how_far_it_could_be_and_what_would_be_found() -> None:
    text = compared(pair(), pair("decides"))
    assert (
        "pass@1 leaves 1 of 1 pairs undecided; differences of up to 0.375 are not excluded; one of 0.400 would be "
        "decided four times in five. This is no evidence of equality."
    ) in text
    assert "None of the 1 tests decides after Holm's correction." in compared(pair())
    exact = replace(pair(), difference=Estimate.exact(0.1))
    assert "pass@1 leaves 1 of 1 pairs undecided; one of 0.400 would" in compared(exact)
    assert "one of 0.300 to 0.400 would be decided" in compared(pair(), pair(least_detectable=Estimate.exact(0.3)))
    # cautions fit what was compared
    assert compared() == "No two cells differ in exactly one thing, so nothing is compared in pairs."
    assert "only held-out samples compare like with like" in compared(pair("decides", changed="sampling"))
    assert "Some cells share fewer than two seeds" in compared(pair(num_pairs=1))
    assert "bad is left out: not finished." in compared(left_out={"bad": "not finished"})
