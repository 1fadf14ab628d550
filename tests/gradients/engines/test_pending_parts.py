"""What waits until rows of several batches have met."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.pending_parts import PendingParts
from gradscope.gradients.layers.factors import Summed

TRAINABLE = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(1))}


def summed(*rows: list[float]) -> list[Summed]:
    return [Summed(rows=torch.tensor(rows))]


@pytest.mark.parametrize("waits", [True, False])
def test_rows_of_different_batches_meet(waits):
    accumulator = GramAccumulator(2, torch.device("cpu"))
    with PendingParts(TRAINABLE, accumulator, waits=waits, max_kept_bytes=0) as pending:
        pending.take("a", (1,), summed([1.0, 2.0]))
        pending.take("a", [0], summed([3.0, -1.0]))
        pending.take("b", (0, 1), summed([1.0], [1.0]))
        assert not accumulator.gram.any()
        pending.combine("a")
        assert accumulator.gram.tolist() == [[10.0, 1.0], [1.0, 5.0]]
        pending.combine_all({"a"})
    assert accumulator.gram.tolist() == [[11.0, 2.0], [2.0, 6.0]]
    assert accumulator.num_parameters == 3


def test_what_no_rule_covers_is_dropped():
    accumulator = GramAccumulator(1, torch.device("cpu"))
    with PendingParts(TRAINABLE, accumulator, waits=True) as pending:
        pending.take("a", (0,), summed([1.0, 2.0]))
        pending.take("b", (0,), summed([3.0]))
        pending.combine_all({"a"})
    assert accumulator.gram.tolist() == [[9.0]]
    assert accumulator.num_parameters == 1
