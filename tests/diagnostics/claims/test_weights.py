"""What training did to weights, from made-up changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradscope.diagnostics.claims.claim import Judgement
from gradscope.diagnostics.claims.weights import (
    FEW_CHANGE,
    avoids_principal_directions,
    few_parameters_change,
    inherits_singular_values,
)
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from tests.diagnostics.claims.made_up_evidence import Given


def change(first: int, last: int, *, overlap: float = 0.1, null: float = 0.1, changed: float | None = 0.1) -> object:
    unknown = Estimate.undefined_because("the base model is not on this disk")
    return SimpleNamespace(
        first=first,
        last=last,
        principal_overlap=unknown if changed is None else Estimate.exact(overlap),
        principal_null=Estimate.exact(null),
        spectrum_drift=unknown if changed is None else Estimate.exact(overlap),
        spectrum_drift_null=Estimate.exact(null),
        bfloat16_changed=unknown if changed is None else Estimate.exact(changed),
    )


def judged(judge, *changes: object) -> Judgement:
    return judge(Given(found={"updates": changes}))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.01, 0.05, 0.02, 0.0), "supported"),
        ((0.25, 0.26, 0.27, 0.26), "supported"),
        ((0.29, 0.295, 0.3, 0.31), "cannot_tell"),
        ((0.31, 0.33, 0.32, 0.34), "contradicted"),
    ],
)
def test_few_parameters_are_thirty_per_cent(shares: tuple[float, ...], verdict: str) -> None:
    """A share cannot be negative, so an interval that a few small ones would stretch below zero is no doubt."""
    found = judged(few_parameters_change, *(change(0, 4, changed=share) for share in shares))
    assert FEW_CHANGE == 0.3
    assert (found.verdict, found.null.value) == (verdict, 1.0)
    assert 0 <= found.estimate.low <= found.estimate.high <= 1


@pytest.mark.parametrize(
    ("overlaps", "verdict"),
    [((0.01, 0.02, 0.03), "supported"), ((0.08, 0.1, 0.11), "cannot_tell"), ((0.2, 0.22, 0.21), "contradicted")],
)
@pytest.mark.parametrize("judge", [avoids_principal_directions, inherits_singular_values])
def test_shares_are_held_against_those_of_random_changes(judge, overlaps: tuple[float, ...], verdict: str) -> None:
    found = judged(judge, *(change(0, 4, overlap=overlap) for overlap in overlaps))
    assert found.verdict == verdict
    assert found.estimate.value == pytest.approx(sum(overlaps) / 3 - 0.1)
    assert "from 0 to 4 updates, with an interval over 3 weights: other weights, not other runs" in found.why


def test_only_the_whole_way_counts() -> None:
    halves = [change(0, 2, changed=0.9), change(2, 4, changed=0.9)]
    assert (
        judged(few_parameters_change, *halves, *(change(0, 4, changed=s) for s in (0.1, 0.11))).estimate.num_units == 2
    )


def test_without_initial_weights_nobody_can_tell() -> None:
    for judge in (few_parameters_change, avoids_principal_directions, inherits_singular_values):
        found = judged(judge, change(0, 4), change(0, 4, changed=None))
        assert (found.verdict, found.why) == (
            "cannot_tell",
            "The initial weights of fewer than two matrices are on disk.",
        )
        with pytest.raises(InputError, match="An update needs two checkpoints of one kind, and there are 0"):
            judge(Given())


def test_weights_that_all_changed_alike_have_no_interval() -> None:
    assert judged(few_parameters_change, change(0, 4), change(0, 4)).verdict == "cannot_tell"
