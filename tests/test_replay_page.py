"""The reference has every cause of replay with where it is met and what to do, and every claim."""

import re

from docs.hooks.reference import page_of
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.reason import CAUSES
from tests.conftest import REPOSITORY


def test_the_reference_has_every_cause() -> None:
    page = page_of("replay")
    for name, cause in CAUSES.items():
        assert re.search(
            rf"^\| `{name}` \| {cause.verdict} \| \w.+ \| {re.escape(cause.advice)} \|$", page, re.MULTILINE
        )
    met = (REPOSITORY / "docs" / "research" / "causes.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.partition(",")[0] for line in met] == list(CAUSES)


def test_the_reference_has_every_claim() -> None:
    page = page_of("claims")
    for claim in CLAIMS:
        assert f"| `{claim.name}` | {claim.claim} | {claim.metric} | {claim.source} | {claim.settle} |" in page
