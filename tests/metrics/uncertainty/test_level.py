from __future__ import annotations

import pytest
from scipy import stats

from gradscope.metrics.uncertainty.level import COVERAGE, NORMAL, QUANTILES, UPPER_TAIL


def test_every_form_of_the_level_is_the_same_level() -> None:
    assert (COVERAGE, UPPER_TAIL, QUANTILES) == (0.95, 0.975, (0.025, 0.975))
    assert stats.norm.cdf(NORMAL) - stats.norm.cdf(-NORMAL) == pytest.approx(COVERAGE, abs=1e-15)
