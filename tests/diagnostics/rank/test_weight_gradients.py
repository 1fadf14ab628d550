"""Spectra of dL/dW as the engine measured them, where the gradient is, and what optimizers make of it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradscope.diagnostics.rank.weight_gradients import (
    OptimizerQuestion,
    _module_of,
    learning_rates,
    module_shares,
    optimizer_steps,
    weight_spectra,
)
from gradscope.gradients import processes
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import MatrixSteps, TensorNorm, WeightSpectrum
from gradscope.gradients.step.measure import measure_step
from gradscope.metrics.gram.spectrum import effective_rank, gaussian_matrix_values
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.gradients.models import DAPO, tiny_groups, tiny_policy, weight_of
from tests.gradients.tokens.test_sums import changed


def test_one_spectrum_a_matrix_beside_that_of_independent_entries() -> None:
    answer = (
        WeightSpectrum(tensor="q", shape=(2, 6), singular_values=np.array([4.0, 3.0]), entries={}),
        WeightSpectrum(tensor="k", shape=(3, 2), singular_values=np.array([0.0, 0.0]), entries={}),
    )
    gram = SimpleNamespace(group_ids=("a", "a", "a", "b"), relative_row_error=0.1)
    query, key = weight_spectra(7, answer, gram)
    assert (query.label.step, query.label.tensor, query.label.shape) == (7, "q", (2, 6))
    assert (query.label.rows, query.label.advantage, query.label.group_size) == ("weight", "logged", 3)
    assert query.singular_values == (4.0, 3.0)
    assert query.noise_floor == pytest.approx(0.1 * 5.0)
    assert query.ranks.stable_rank.value == pytest.approx(25 / 16)
    assert query.nulls["gaussian"].value == effective_rank(gaussian_matrix_values(2, 6)).value
    assert key.ranks.effective_rank.value is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lm_head.weight", "output head"),
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wte.weight", "embedding"),
        ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("base_model.model.model.layers.1.self_attn.q_proj.lora_B.default.weight", "attention"),
        ("transformer.h.0.mlp.c_fc.weight", "mlp"),
        ("model.layers.0.block_sparse_moe.experts.w1", "mlp"),
        ("model.layers.0.input_layernorm.weight", "other"),
    ],
)
def test_a_weight_is_of_the_module_that_its_name_tells(name: str, kind: str) -> None:
    assert _module_of(name) == kind


def norm(name: str, value: float) -> TensorNorm:
    return TensorNorm(tensor=name, num_entries=1, norm=value)


def test_squares_add_up_by_kind() -> None:
    shares = module_shares(3, [norm("lm_head.weight", 3.0), norm("a.mlp.up", 4.0), norm("b.mlp.up", 12.0)])
    assert [(one.step, one.module) for one in shares] == [(3, "output head"), (3, "mlp")]
    assert [one.norm.value for one in shares] == pytest.approx([3.0, 160**0.5])
    assert [one.energy_share.value for one in shares] == pytest.approx([9 / 169, 160 / 169])
    assert [one.frac_parameters.value for one in shares] == pytest.approx([1 / 3, 2 / 3])


def test_a_gradient_of_nothing_is_nowhere() -> None:
    assert module_shares(3, [norm("lm_head.weight", 0.0)]) == []


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
