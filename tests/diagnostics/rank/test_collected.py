"""What is kept of each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank.collected import Collected, examine_advantages, examine_step, kl_of_dead_groups
from gradscope.diagnostics.rank.weights.optimizer_question import GradientOfStep
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.directions import MatrixSteps, TensorNorm
from gradscope.gradients.step.heldout import HeldoutGram
from gradscope.reason import Reason
from tests.diagnostics.made_up_runs import group_of as rewarded
from tests.diagnostics.made_up_runs import run_of
from tests.diagnostics.rank.rollouts.test_advantage_matrix import group_of
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows
from tests.diagnostics.rank.test_request import request
from tests.gradients.models import DAPO, measured_step, policy_of, tiny_groups, tiny_model


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


def test_why_steps_have_nothing_of_held_out_answers_is_said_once() -> None:
    rows, _ = make_rows([0.0, 1.0], ["a", "a"])
    collected = Collected(heldout_notes={"Held-out answers: 2 of them.": None})
    for step in (1, 2, 3):
        collected.take_heldout(
            replace(rows, step=step), (Reason("unusable", "all are trained on", "Give others."),), []
        )
    collected.take_heldout(rows, (), ["dr_grpo"])
    assert collected.parts.missing == {"heldout": "step 3: all are trained on. Give others"}
    assert list(collected.heldout_sentences()) == [
        "Held-out answers: 2 of them.",
        "No held-out numbers at steps 1:3: all are trained on. Give others.",
    ]


def test_held_out_answers_are_taken_in_beside_the_rows() -> None:
    rows, scores = make_rows([0.0, 1.0] * 4, [f"g{place // 2}" for place in range(8)])
    products = HeldoutGram(
        cross=scores @ scores[:3].T, norms=np.ones(3), scales=np.ones(8), num_answers=3, notes=("A note.",)
    )
    collected = Collected()
    collected.take_heldout(rows, (products,), ["dr_grpo", "sign"])
    assert [row.advantage for row in collected.heldout] == ["dr_grpo", "sign"]
    assert len(collected.heldout_influences) == 4
    assert list(collected.heldout_sentences()) == ["A note."]


def test_what_the_kl_term_gives_groups_without_a_reward_gradient_is_said() -> None:
    groups = [
        replace(group, rollouts=tuple(replace(one, advantage=0.0) for one in group.rollouts))
        for group in tiny_groups(2, 2)
    ]
    live = replace(groups[0], rollouts=(replace(groups[0].rollouts[0], advantage=1.0), groups[0].rollouts[1]))
    model, reference = tiny_model("llama_untied_biases"), tiny_model("llama_untied_biases").requires_grad_(False)
    reference.lm_head.weight.mul_(1.3)
    kl = Objective(loss_type="grpo", beta=0.5)
    found = measured_step(policy_of(model, reference=reference), [live, groups[1]], kl, engine="stream")
    (sentence,) = kl_of_dead_groups(found)
    block = found.kl_gram[2:, 2:]
    assert sentence.endswith(f"gives these a gradient of norm {np.sqrt(block.sum()):.3g}.")
    assert "which is 0 in 1 of 2 groups" in sentence
    without = measured_step(policy_of(model), [live, groups[1]], DAPO, engine="stream")
    assert list(kl_of_dead_groups(without)) == []
