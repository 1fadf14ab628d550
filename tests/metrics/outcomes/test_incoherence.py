from __future__ import annotations

from gradscope.metrics.outcomes.incoherence import count_incoherent, frac_incoherent
from gradscope.metrics.uncertainty.closed_form import wilson_interval


def test_what_is_not_rewarded_does_not_count() -> None:
    assert count_incoherent([(0.9, True), (0.5, False), (0.499999, False), (0.0, True), (1.0, False)]) == (3, 2)
    assert count_incoherent([]) == (0, 0)


def test_share_with_its_interval() -> None:
    share = frac_incoherent(8, 2)
    assert (share.value, share.num_units) == (0.25, 8)
    assert (share.low, share.high) == wilson_interval(0.25, 8)


def test_nothing_rewarded_has_no_share() -> None:
    assert frac_incoherent(0, 0).undefined == "no rollout was rewarded"
