from __future__ import annotations

import pytest

from gradscope.diagnostics.inputs.tolerance import meets_logged


@pytest.mark.parametrize(("norm", "met"), [(3.0, True), (3.00002, True), (3.0001, False), (2.9999, False)])
def test_a_norm_is_met_to_one_in_a_hundred_thousand(norm: float, met: bool) -> None:
    assert meets_logged(norm, 3.0) == met
