"""The claims as data."""

from msgspec.structs import replace

from gradscope.diagnostics.claims.evidence import Claim, Evidence
from gradscope.diagnostics.claims.measure import claims_of
from gradscope.diagnostics.claims.registry import CLAIMS
from tests.diagnostics.claims.made_up_evidence import Answered
from tests.diagnostics.made_up_runs import two_steps


def test_every_claim_says_everything_and_has_a_name_of_its_own() -> None:
    texts = [name for name in Claim.__struct_fields__ if name not in ("judge", "ours", "needs")]
    assert all(getattr(claim, text).strip() for claim in CLAIMS for text in texts)
    for text in ("name", "metric"):
        assert len({(getattr(claim, text), claim.claim) for claim in CLAIMS}) == len(CLAIMS)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.settle.endswith(".") and claim.claim.endswith(".") for claim in CLAIMS)
    # a claim asks for weights exactly where it says that it needs them
    reasons = ("No weights here.", "An update needs two checkpoints of one kind, and there are 0.")
    evidence = Evidence(run=two_steps(), steps=(), no_gradients="no weights here")
    rows = claims_of(evidence, [replace(claim, needs=None) for claim in CLAIMS]).claims
    assert [row.why in reasons for row in rows] == [claim.needs is not None for claim in CLAIMS]


def test_a_log_of_two_rollouts_decides_nothing() -> None:
    """No claim fails on it either: each lacks something, and says what."""
    rows = claims_of(Answered(no_gradients="no weights are on disk")).claims
    assert [row.name for row in rows] == [claim.name for claim in CLAIMS]
    assert {row.verdict for row in rows} == {"cannot_tell"}
    assert all(not row.why[0].islower() and row.why.endswith(".") and not row.why.endswith("..") for row in rows)
