"""One sequence at a time: the reference engine."""

from __future__ import annotations

import pytest

from gradscope.errors import UsageError
from tests.gradients.models import (
    DAPO,
    measured_step,
    tiny_groups,
    tiny_policy,
)


def test_loop_refuses_rows_beyond_its_budget():
    with pytest.raises(UsageError, match="Keeping 6 gradient rows takes"):
        measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO, engine="loop", max_row_bytes=1000)
