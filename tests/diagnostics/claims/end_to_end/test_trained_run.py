"""A run that was trained here, held against every claim; ranks are those of ``gradscope rank``."""

from pathlib import Path

import pytest

from gradscope.diagnostics.claims.evidence import ADVANTAGE, MAX_TOKENS
from gradscope.diagnostics.claims.measure import measure_claims, read_claims
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.results.verdicts import ClaimRow, ClaimsReport

pytestmark = pytest.mark.slow  # a run is trained for it

STEP, SIZE = 2, 4  # the last step of the run, and its groups


@pytest.fixture(scope="module")
def report(tiny_run: Path) -> ClaimsReport:
    return measure_claims(tiny_run, steps=[STEP])


def row_of(report: ClaimsReport, name: str) -> ClaimRow:
    (row,) = [row for row in report.claims if row.name == name]
    return row


def test_every_claim_has_a_verdict_and_a_sentence(report: ClaimsReport) -> None:
    assert [row.name for row in report.claims] == [claim.name for claim in CLAIMS]
    assert {row.verdict for row in report.claims} <= {"supported", "contradicted", "cannot_tell"}
    assert all(row.why.endswith(".") and row.settle for row in report.claims)
    assert (report.steps, report.skipped) == ((STEP,), {})
    assert report.engine["engine"]
    measured = {row.name for row in report.claims if row.estimate.is_defined}
    assert {claim.name for claim in CLAIMS if claim.name.startswith(("rank_two", "rank_rises", "weights"))} <= measured


@pytest.mark.parametrize(
    ("name", "rows", "sequence"),
    [
        ("rollouts", "rollout", "curve"),
        ("hidden_rollouts", "hidden", "curve"),
        ("hidden_tokens", "hidden", "token_curve"),
        ("logits", "logit", "token_curve"),
        ("advantages", "advantage", "curve"),
        ("weights", "weight", "weight_curve"),
        ("output_head", "weight", "weight_curve"),
    ],
)
def test_each_matrix_is_the_one_of_rank(
    tiny_run: Path, report: ClaimsReport, name: str, rows: str, sequence: str
) -> None:
    tokens = MAX_TOKENS if rows in ("hidden", "logit") else None
    options = RankOptions(group_sizes=[2], pair_groups=True, tokens=tokens)
    of_rank = measure_rank(tiny_run, steps=[STEP], rows=rows, advantages=[ADVANTAGE], options=options)
    tensor = "lm_head.weight" if name == "output_head" else None
    points = [point for point in getattr(of_rank, sequence) if getattr(point, "tensor", None) == tensor]
    points.sort(key=lambda point: point.group_size)
    row, largest = row_of(report, f"rank_two.{name}"), points[-1]
    assert (row.steps, largest.group_size) == ((STEP,), SIZE)
    assert row.estimate == largest.effective_rank
    assert row.null == largest.nulls["gaussian"].effective_rank
    assert all(f"{point.effective_rank.value:.2f} at R = {point.group_size}" in row.why for point in points)


def test_without_gradients_only_claims_about_them_are_open(tiny_run: Path, report: ClaimsReport) -> None:
    bare = measure_claims(tiny_run, gradients=False)
    assert (bare.steps, bare.engine) == ((), {})
    reason = "Gradients were not recomputed, as asked (--no-gradients)."
    refused = {row.name for row in bare.claims if row.why == reason}
    assert {row.verdict for row in bare.claims if row.name in refused} == {"cannot_tell"}
    sparser = ("sparser.rollouts", "sparser.tokens", "sparser.entries")
    recomputed = ("rank_two", "rank_rises", *sparser, "optimal", "sign", "tokens", "entropy")
    names = {claim.name for claim in CLAIMS if claim.name.startswith((*recomputed, "negative"))}
    assert refused == names - {"rank_two.advantages"}
    for row in bare.claims:
        if row.name not in refused:
            assert row == row_of(report, row.name)


def test_a_metric_of_ones_own_is_recomputed_where_gradients_are(tiny_run: Path, tmp_path: Path) -> None:
    texts = "".join(f'{key} = "it"\n' for key in ("name", "source", "claim", "settle"))
    (tmp_path / "mine.toml").write_text(f'[[claims]]\n{texts}metric = "effective_rank"\nbetween = [1, 8]\n')
    mine = read_claims(tmp_path / "mine.toml")
    (row,) = measure_claims(tiny_run, claims=mine).claims
    assert 1 <= row.estimate.value <= 8
    (row,) = measure_claims(tiny_run, claims=mine, gradients=False).claims
    assert row.why == "Gradients were not recomputed, as asked (--no-gradients)."
