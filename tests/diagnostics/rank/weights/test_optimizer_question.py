"""What `--rows weight` asks of a step beside its ranks."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradscope.diagnostics.rank.weights.optimizer_question import (
    OptimizerQuestion,
    learning_rates,
    optimizer_steps,
)
from gradscope.gradients import processes
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import MatrixSteps
from gradscope.gradients.step.measure import measure_step
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.gradients.models import DAPO, tiny_groups, tiny_policy, weight_of
from tests.gradients.tokens.test_sums import changed

ROWS = SimpleNamespace(measure=lambda prepared, gram, progress: ("rows",))


def test_steps_are_those_from_the_gradient_of_the_step() -> None:
    groups, policy = tiny_groups(2, 2), tiny_policy("llama_untied_biases")
    prepared = prepare_step(policy, groups, DAPO)
    rows, found = OptimizerQuestion(rows=ROWS, learning_rates={1: 1e-3}).measure(prepared, measure_step(prepared))
    assert rows == ("rows",)
    assert found is not None
    loss = 0.0
    for rollout in (one for each in groups for one in each.rollouts):
        ids, start = torch.tensor([rollout.prompt_ids + rollout.completion_ids]), len(rollout.prompt_ids)
        logs = torch.log_softmax(policy.model(input_ids=ids).logits[0, start - 1 : -1], -1)
        loss = loss - weight_of(groups) * rollout.advantage * logs.gather(1, ids[0, start:, None]).sum()
    gradient = dict(zip(policy.trainable, torch.autograd.grad(loss, list(policy.trainable.values())), strict=True))
    matrices = {name: grad for name, grad in gradient.items() if grad.dim() == 2}
    whole = {one.optimizer: one for one in optimizer_steps(1, found.steps) if one.tensor is None}
    flat = torch.cat([grad.flatten() for grad in matrices.values()]).double()
    expected = float(flat.abs().sum() / flat.norm() / flat.sign().norm())
    assert whole["adam"].cosines["sgd"].value == pytest.approx(expected, rel=1e-2)
    assert 0 < whole["adam"].bfloat16_moved.value <= 1
    assert {one.tensor: one.norm for one in found.norms} == pytest.approx(
        {name: float(grad.norm()) for name, grad in gradient.items()}, rel=1e-4
    )


def test_without_advantages_there_is_no_gradient() -> None:
    prepared = prepare_step(
        tiny_policy("llama_untied_biases"), changed(tiny_groups(1, 2), advantage=lambda one: None), DAPO
    )
    question = OptimizerQuestion(rows=ROWS, learning_rates={})
    assert question.measure(prepared, measure_step(prepared)) == (("rows",), None)


def test_of_several_processes_each_has_a_part_and_none_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    gram = measure_step(prepared)
    monkeypatch.setattr(processes, "num_connected", lambda: 2)
    _, found = OptimizerQuestion(rows=ROWS, learning_rates={}).measure(prepared, gram)
    assert found is not None
    assert found.steps == ()
    assert found.norms


def steps(name: str, products: np.ndarray, moved: tuple[int, int, int] | None) -> MatrixSteps:
    values = (np.array([2.0, 0.0]), np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    return MatrixSteps(tensor=name, num_entries=10, products=products, singular_values=values, num_moved=moved)


def test_matrices_add_up() -> None:
    first, second = np.diag([1.0, 4.0, 9.0]), np.diag([3.0, 12.0, 7.0]) + np.eye(3)[[1, 0, 2]] * [2.0, 2.0, 0.0]
    found = optimizer_steps(3, [steps("a", first, (1, 8, 4)), steps("b", second, (3, 10, 4))])
    whole = found[:3]
    assert [(one.tensor, one.optimizer) for one in whole] == [(None, "sgd"), (None, "adam"), (None, "muon")]
    assert whole[0].cosines["adam"].value == pytest.approx(2 / np.sqrt(4 * 16))
    assert whole[0].cosines["muon"].value == 0.0
    assert [one.bfloat16_moved.value for one in whole] == pytest.approx([0.2, 0.9, 0.4])
    assert [one.effective_rank.value for one in whole] == pytest.approx([1.0, 2.0, 2.0])
    assert [(one.tensor, one.optimizer) for one in found[3:5]] == [("a", "sgd"), ("a", "adam")]
    assert found[6].cosines["adam"].value == pytest.approx(2 / 6)


def test_without_a_learning_rate_nothing_moves_that_could_be_told() -> None:
    found = optimizer_steps(3, [steps("a", np.eye(3), None)])
    assert found[0].bfloat16_moved.undefined == "the trainer's learning rate is not known at this step"
    assert optimizer_steps(3, []) == []


def test_the_learning_rate_is_the_logged_one() -> None:
    run = run_of(group_of([0.0, 1.0], step=1), group_of([0.0, 1.0], step=2))
    metrics = {1: {"learning_rate": 1e-4}, 2: {"actor/lr": 2e-4}, 3: {"learning_rate": 0.0}, 4: {}}
    assert learning_rates(dataclasses.replace(run, metrics=metrics)) == {1: 1e-4, 2: 2e-4}
