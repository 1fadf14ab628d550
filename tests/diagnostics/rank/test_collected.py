"""What is kept of each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank.collected import Collected, examine_advantages, examine_step
from gradscope.diagnostics.rank.weights.optimizer_question import GradientOfStep
from gradscope.gradients.step.optimizer_steps import MatrixSteps
from gradscope.gradients.step.tensor_norms import TensorNorm
from tests.diagnostics.made_up_runs import group_of as rewarded
from tests.diagnostics.made_up_runs import run_of
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


def test_what_was_asked_of_weights_beside_their_rows_is_kept_or_named() -> None:
    norms = (TensorNorm(tensor="lm_head.weight", num_entries=4, norm=2.0),)
    values = (np.ones(2), np.ones(2), np.ones(2))
    steps = (MatrixSteps(tensor="q", num_entries=4, products=np.eye(3), singular_values=values, num_moved=(1, 2, 3)),)
    measured = MeasuredStep(step=4, groups=(), weights=None, gram=None, reason=None)

    def collected(gradient: GradientOfStep | None) -> Collected:
        into = Collected()
        asked = replace(measured, answer=(("rows",), gradient))
        assert into.take_parts(run_of(rewarded([0.0, 1.0], step=4)), asked, "weight").answer == ("rows",)
        return into

    whole = collected(GradientOfStep(norms=norms, steps=steps))
    assert ([one.module for one in whole.modules], len(whole.optimizers)) == (["output head"], 6)
    assert whole.parts.missing == {}
    in_parts = collected(GradientOfStep(norms=norms, steps=()))
    assert in_parts.parts.missing.keys() == {"optimizers"}
    assert "step 4: several processes share the model" in in_parts.parts.missing["optimizers"]
    assert collected(None).parts.missing.keys() == {"optimizers", "modules"}
    assert Collected().take_parts(run_of(rewarded([0.0, 1.0], step=4)), measured, "weight") is measured
    assert Collected().take_parts(run_of(rewarded([0.0, 1.0], step=4)), measured, "rollout") is measured
