"""What waits until rows of several batches have met."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradscope.gradients.engines import pending_parts
from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.pending_parts import PendingParts
from gradscope.gradients.layers.factors import Scatter, Summed

CPU = torch.device("cpu")
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


@pytest.mark.parametrize(
    ("free", "names", "rounds"),
    [
        (10**6, ["a", "b"], 1),
        (2 * 3 * 12, ["a", "b"], 1),  # twelve bytes a row of three
        (2 * 3 * 12 - 2, ["b"], 2),
        (2 * 3 * 4, ["b"], 2),
        (0, ["b"], 2),  # one at a time, room or not
    ],
)
def test_what_is_too_much_is_left_for_another_round_from_the_top_of_the_model_on(free, names, rounds, monkeypatch):
    monkeypatch.setattr(pending_parts, "free_bytes", lambda: free)
    accumulator = GramAccumulator(3, torch.device("cpu"))
    with PendingParts(TRAINABLE, accumulator, waits=True, max_kept_bytes=0) as pending:
        for row in range(3):
            pending.take("a", (row,), summed([1.0, 2.0]))  # its gradient comes first: it is nearer to the output
            pending.take("b", (row,), summed([3.0]))
            if row == 0:
                assert pending.leave_what_does_not_fit(tokens=50.0, rows=3.0) == rounds
        pending.combine_all(())
    assert list(pending.left) == [name for name in TRAINABLE if name not in names]
    expected = 5.0 * ("a" in names) + 9.0
    assert accumulator.gram.tolist() == [[expected] * 3] * 3
    assert accumulator.num_parameters == 2 * ("a" in names) + 1


def test_memory_is_room_too_and_pairs_grow_with_tokens(monkeypatch):
    monkeypatch.setattr(pending_parts, "free_bytes", lambda: 0)
    table = Scatter(ids=(torch.tensor([0]),), grads=(torch.ones(1, 1),))  # 8 bytes and 4
    for tokens, left in ((4.0, []), (4.1, ["a"])):
        with PendingParts(TRAINABLE, GramAccumulator(9, CPU), waits=True, max_kept_bytes=48 + 36) as pending:
            pending.take("a", (0,), [table])
            pending.take("b", (0,), summed([3.0]))
            assert pending.leave_what_does_not_fit(tokens=tokens, rows=9.0) == 1 + len(left)
        assert list(pending.left) == left


def test_one_batch_leaves_nothing(monkeypatch):
    monkeypatch.setattr(pending_parts, "free_bytes", lambda: 0)
    with PendingParts(TRAINABLE, GramAccumulator(1, CPU), waits=False, max_kept_bytes=0) as pending:
        pending.take("a", (0,), summed([1.0, 2.0]))
        pending.take("b", (0,), summed([3.0]))
        assert pending.leave_what_does_not_fit(tokens=1.0, rows=1.0) == 1
        assert pending.left == {}
