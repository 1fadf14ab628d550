from __future__ import annotations

import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from tests.diagnostics.made_up_runs import beta_run


def test_histogram_shows_the_ends_and_adds_up() -> None:
    report = degeneracy_of_run(beta_run())
    bars = report.pass_rates.histogram
    assert len(bars) == 9
    assert sum(bar.observed for bar in bars) == pytest.approx(1.0)
    assert sum(bar.beta_binomial for bar in bars) == pytest.approx(1.0)
    assert sum(bar.binomial for bar in bars) == pytest.approx(1.0)
    assert bars[0].observed == report.frac_all_fail.value
    assert bars[-1].observed == report.frac_all_pass.value
