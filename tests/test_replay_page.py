"""The page of replay names every cause in the code's order, and the reference has what to do about each."""

from docs.hooks.reference import page_of
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.reason import CAUSES
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "replay.md").read_text(encoding="utf-8")


def test_the_page_says_where_every_cause_is_met() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `")]
    assert [name.strip(" `") for name, _ in rows] == list(CAUSES)
    assert all(where.strip() for _, where in rows)


def test_the_reference_has_the_verdict_and_the_advice_of_every_cause() -> None:
    page = page_of("replay")
    for name, cause in CAUSES.items():
        assert f"| `{name}` | {cause.verdict} | {cause.advice} |" in page


def test_the_reference_has_every_claim() -> None:
    page = page_of("claims")
    for claim in CLAIMS:
        assert f"| `{claim.name}` | {claim.claim} | {claim.metric} | {claim.source} | {claim.settle} |" in page
