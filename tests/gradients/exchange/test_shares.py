from __future__ import annotations

import numpy as np
import pytest

from gradscope.gradients.exchange.shares import deal_rows


@pytest.mark.parametrize("num_processes", [1, 2, 3, 8])
def test_every_row_is_dealt_once_and_none_has_much_more(num_processes: int) -> None:
    lengths = np.random.default_rng(0).integers(10, 2000, 64).tolist()
    shares = deal_rows(lengths, num_processes)
    assert sorted(row for share in shares for row in share) == list(range(64))
    tokens = [sum(lengths[row] for row in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(lengths)


def test_fewer_rows_than_processes_leave_some_without() -> None:
    assert deal_rows([5, 7], 3) == [(1,), (0,), ()]
