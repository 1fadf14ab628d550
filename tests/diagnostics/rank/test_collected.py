"""What is kept of each step."""

from __future__ import annotations

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank.collected import Collected, examine_advantages, examine_step
from tests.diagnostics.rank.rollouts.test_advantage_matrix import group_of
from tests.diagnostics.rank.test_request import request


def test_a_step_without_gradients_keeps_its_reason() -> None:
    collected = Collected()
    measured = MeasuredStep(step=4, groups=(), weights=None, gram=None, reason="no weights are on disk")
    examine_step(None, measured, request(), collected)
    assert collected.skipped == {4: "no weights are on disk"}


def test_advantages_need_no_gradient() -> None:
    collected, rows = Collected(), request(rows="advantage", advantages=("logged", "sign", "pass_at_4"), group_sizes=())
    groups = group_of({"completion_ids": (1, 2), "advantage": 1.0}, {"completion_ids": (1, 2), "advantage": -1.0})
    examine_advantages(3, groups, rows, collected)
    assert [point.advantage for point in collected.curve] == ["logged", "sign"]
    assert set(collected.refused) == {"pass_at_4"}
    examine_advantages(4, group_of({"advantage": 1.0}), rows, collected)
    assert "has no token ids" in collected.skipped[4].text
