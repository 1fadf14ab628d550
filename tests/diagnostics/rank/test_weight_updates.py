"""What training did to each weight, to an adapter, and beside the gradient before."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from gradscope.diagnostics.rank import weight_updates
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.gradients import processes
from gradscope.gradients.model.checkpoint import Checkpoint
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import MatrixSteps, TensorNorm, WeightSpectrum
from gradscope.gradients.step.measure import measure_step
from gradscope.metrics.gram.spectrum import effective_rank, gaussian_matrix_values, rank_estimates
from gradscope.progress import no_progress
from gradscope.results.rank import GradientSpectrum, Ranks, SpectrumLabel
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.gradients.models import DAPO, changed, tiny_groups, tiny_policy, weight_of


def test_each_matrix_has_a_spectrum_and_that_of_independent_entries() -> None:
    answer = (
        WeightSpectrum(tensor="q", shape=(2, 6), singular_values=np.array([4.0, 3.0]), entries={}),
        WeightSpectrum(tensor="k", shape=(3, 2), singular_values=np.array([0.0, 0.0]), entries={}),
    )
    gram = SimpleNamespace(group_ids=("a", "a", "a", "b"), relative_row_error=0.1)
    query, key = weight_updates.weight_spectra(7, answer, gram)
    assert (query.label.step, query.label.tensor, query.label.shape) == (7, "q", (2, 6))
    assert (query.label.rows, query.label.advantage, query.label.group_size) == ("weight", "logged", 3)
    assert not query.label.centered
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
def test_a_weight_belongs_to_the_module_of_its_name(name: str, kind: str) -> None:
    (share,) = weight_updates.module_shares(1, [norm(name, 1.0)])
    assert share.module == kind
    assert weight_updates.module_shares(3, [norm(name, 0.0)]) == []


def norm(name: str, value: float) -> TensorNorm:
    return TensorNorm(tensor=name, num_entries=1, norm=value)


def test_squares_add_up_by_kind() -> None:
    shares = weight_updates.module_shares(
        3, [norm("lm_head.weight", 3.0), norm("a.mlp.up", 4.0), norm("b.mlp.up", 12.0)]
    )
    assert [(share.step, share.module) for share in shares] == [(3, "output head"), (3, "mlp")]
    assert [share.norm.value for share in shares] == pytest.approx([3.0, 160**0.5])
    assert [share.energy_share.value for share in shares] == pytest.approx([9 / 169, 160 / 169])
    assert [share.frac_parameters.value for share in shares] == pytest.approx([1 / 3, 2 / 3])


def test_steps_are_those_from_the_gradient_of_the_step() -> None:
    groups, policy = tiny_groups(2, 2), tiny_policy("llama_untied_biases")
    prepared = prepare_step(policy, groups, DAPO)
    summary = weight_updates.summarize_gradient(prepared, measure_step(prepared), learning_rates={1: 1e-3})
    loss = 0.0
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        ids, start = torch.tensor([rollout.prompt_ids + rollout.completion_ids]), len(rollout.prompt_ids)
        logs = torch.log_softmax(policy.model(input_ids=ids).logits[0, start - 1 : -1], -1)
        loss = loss - weight_of(groups) * rollout.advantage * logs.gather(1, ids[0, start:, None]).sum()
    gradient = dict(zip(policy.trainable, torch.autograd.grad(loss, list(policy.trainable.values())), strict=True))
    matrices = {name: grad for name, grad in gradient.items() if grad.dim() == 2}
    full = {row.optimizer: row for row in weight_updates.optimizer_steps(1, summary.steps) if row.tensor is None}
    flat = torch.cat([grad.flatten() for grad in matrices.values()]).double()
    expected = float(flat.abs().sum() / flat.norm() / flat.sign().norm())
    assert full["adam"].cosines["sgd"].value == pytest.approx(expected, rel=1e-2)
    assert 0 < full["adam"].bfloat16_moved.value <= 1
    assert {row.tensor: row.norm for row in summary.norms} == pytest.approx(
        {name: float(grad.norm()) for name, grad in gradient.items()}, rel=1e-4
    )


def test_without_advantages_or_one_process_there_are_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_step(
        tiny_policy("llama_untied_biases"), changed(tiny_groups(1, 2), advantage=lambda first: None), DAPO
    )
    assert weight_updates.summarize_gradient(prepared, measure_step(prepared), learning_rates={}) is None
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(1, 2), DAPO)
    gram = measure_step(prepared)
    monkeypatch.setattr(processes, "num_connected", lambda: 2)
    summary = weight_updates.summarize_gradient(prepared, gram, learning_rates={})
    assert summary.steps == ()
    assert summary.norms


def steps(name: str, products: np.ndarray, moved: tuple[int, int, int] | None) -> MatrixSteps:
    values = (np.array([2.0, 0.0]), np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    return MatrixSteps(tensor=name, num_entries=10, products=products, singular_values=values, num_moved=moved)


def test_matrices_add_up() -> None:
    first, second = np.diag([1.0, 4.0, 9.0]), np.diag([3.0, 12.0, 7.0]) + np.eye(3)[[1, 0, 2]] * [2.0, 2.0, 0.0]
    result = weight_updates.optimizer_steps(3, [steps("a", first, (1, 8, 4)), steps("b", second, (3, 10, 4))])
    full = result[:3]
    assert [(row.tensor, row.optimizer) for row in full] == [(None, "sgd"), (None, "adam"), (None, "muon")]
    assert full[0].cosines["adam"].value == pytest.approx(2 / np.sqrt(4 * 16))
    assert full[0].cosines["muon"].value == 0.0
    assert [row.bfloat16_moved.value for row in full] == pytest.approx([0.2, 0.9, 0.4])
    assert [row.effective_rank.value for row in full] == pytest.approx([1.0, 2.0, 2.0])
    assert [(row.tensor, row.optimizer) for row in result[3:5]] == [("a", "sgd"), ("a", "adam")]
    assert result[6].cosines["adam"].value == pytest.approx(2 / 6)
    (unmoved, *_) = weight_updates.optimizer_steps(3, [steps("a", np.eye(3), None)])
    assert unmoved.bfloat16_moved.undefined == "the trainer's learning rate is not known at this step"
    assert weight_updates.optimizer_steps(3, []) == []


def test_the_learning_rate_is_the_logged_one() -> None:
    run = run_of(group_of([0.0, 1.0], step=1), group_of([0.0, 1.0], step=2))
    metrics = {1: {"learning_rate": 1e-4}, 2: {"actor/lr": 2e-4}, 3: {"learning_rate": 0.0}, 4: {}}
    assert weight_updates.learning_rates(replace(run, metrics=metrics)) == {1: 1e-4, 2: 2e-4}


RNG = np.random.default_rng(0)
DOWN, EXPAND = RNG.normal(size=(3, 40)), RNG.normal(size=(30, 3))


def checkpoint(num_updates: int, expand: np.ndarray) -> Checkpoint:
    return Checkpoint(num_updates=num_updates, matrices={}, factors={"q": lambda: (DOWN, expand)})


def test_a_fresh_adapter_and_one_that_was_trained() -> None:
    checkpoints = [checkpoint(0, 0 * EXPAND), checkpoint(5, EXPAND)]
    products = zip(checkpoints, (np.zeros((30, 40)), 2 * EXPAND @ DOWN), strict=True)
    fresh, trained = (weight_updates._state("q", saved, product, Estimate.exact(4.0)) for saved, product in products)
    assert fresh.b_norm.value == 0.0
    assert "zero" in str(fresh.effective_rank.undefined)
    assert fresh.alignment.undefined == "one of the two factors is still zero"
    assert fresh.product_size.value == 0.0
    product = EXPAND @ DOWN
    shares = np.linalg.svd(product, compute_uv=False)[:3] / np.linalg.svd(product, compute_uv=False).sum()
    assert trained.effective_rank.value == pytest.approx(np.exp(-np.sum(shares * np.log(shares))))
    assert trained.alignment.value == pytest.approx(
        np.linalg.norm(product) / np.linalg.norm(EXPAND) / np.linalg.norm(DOWN)
    )
    assert trained.product_size.value == pytest.approx(np.linalg.norm(2 * product) / 4)
    assert trained.a_norm.value == pytest.approx(np.linalg.norm(DOWN))
    assert trained.b_norm.value == pytest.approx(np.linalg.norm(EXPAND))
    assert (trained.tensor, trained.num_updates, trained.rank) == ("q", 5, 3)
    # these factors are unrelated, and so are those of the null
    assert trained.unrelated_rank.value == pytest.approx(trained.effective_rank.value, rel=0.1)
    assert trained.unrelated_alignment.value == pytest.approx(trained.alignment.value, rel=0.1)


NAME = "model.layers.0.self_attn.q_proj.weight"
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"


def model(folder: Path, num_updates: int, **tensors: torch.Tensor) -> WeightsRef:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({NAME: tensors["matrix"].contiguous(), "model.norm.weight": torch.ones(4)}, folder / "model.safetensors")
    return WeightsRef(num_updates=num_updates, path=folder, kind="full")


def adapter(folder: Path, num_updates: int, expand: torch.Tensor, down: torch.Tensor, **config: object) -> WeightsRef:
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    factors = {f"{MODULE}.lora_A.weight": down, f"{MODULE}.lora_B.weight": expand}
    save_file(factors, folder / "adapter_model.safetensors")
    return WeightsRef(num_updates=num_updates, path=folder, kind="adapter", base=str(folder.parent / "base"))


def matrices(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 4, generator=generator), torch.outer(torch.arange(6.0), torch.ones(4))


def test_a_straight_rank_one_update_is_seen_as_such(tmp_path: Path) -> None:
    start, direction = matrices()
    refs = [model(tmp_path / f"{t}", t, matrix=start + 0.01 * t * direction) for t in (0, 10, 20)]
    updates, (full, first), adapters = weight_updates._measure_weight_updates(refs, no_progress)
    assert [(update.first, update.last) for update in updates] == [(0, 10), (0, 20), (10, 20)]
    assert updates[1].effective_rank.value == pytest.approx(1.0, abs=1e-3)
    assert updates[1].top_energy.value == pytest.approx(1.0)
    assert updates[1].update_size.value == pytest.approx(float(0.2 * direction.norm() / start.norm()), rel=1e-5)
    assert updates[1].gaussian.value > 3
    assert (full.tensor, first.tensor) == (None, NAME)
    assert full.linear_growth.value == pytest.approx(1.0)
    assert full.walk_linear_growth.value < 0.95
    assert full.num_updates == (10, 20)
    assert adapters == ()


def test_weights_that_stand_still_have_no_direction(tmp_path: Path) -> None:
    start, _ = matrices()
    refs = [model(tmp_path / f"{t}", t, matrix=start) for t in (0, 1)]
    (update,), (updates, _), _ = weight_updates._measure_weight_updates(refs, no_progress)
    assert update.update_size.value == 0.0
    assert update.bfloat16_changed.value == 0.0
    assert "zero" in str(update.effective_rank.undefined)
    assert "zero" in str(updates.top_energy.undefined)
    assert "a single update" in str(updates.linear_growth.undefined)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 4.0), (True, 8 / 2**0.5)])
def test_an_adapter_is_the_product_that_it_adds(tmp_path: Path, *, rslora: bool, scale: float) -> None:
    start, _ = matrices()
    model(tmp_path / "base", 0, matrix=start)
    expand, down = torch.randn(6, 2), torch.randn(2, 4)
    refs = [
        adapter(tmp_path / "a0", 0, torch.zeros(6, 2), down, use_rslora=rslora),
        adapter(tmp_path / "a5", 5, expand, down, use_rslora=rslora),
    ]
    (update,), _, _ = weight_updates._measure_weight_updates(refs, no_progress)
    expected = np.linalg.svd(scale * (expand @ down).numpy(), compute_uv=False)
    np.testing.assert_allclose(update.singular_values, expected, atol=1e-5)
    assert update.tensor == NAME
    assert update.update_size.value == pytest.approx(float(scale * (expand @ down).norm() / start.norm()), rel=1e-5)


def test_singular_values_and_directions_are_those_of_the_weights_themselves(tmp_path: Path) -> None:
    start, direction = matrices()
    moved = start + 0.1 * direction
    (update,), _, _ = weight_updates._measure_weight_updates(
        [model(tmp_path / "0", 0, matrix=start), model(tmp_path / "1", 1, matrix=moved)], no_progress
    )
    before, after = (np.linalg.svd(matrix.double().numpy()) for matrix in (start, moved))
    drift = np.linalg.norm(after[1] - before[1]) / np.linalg.norm((moved - start).double().numpy())
    assert update.spectrum_drift.value == pytest.approx(drift, rel=1e-5)
    k = int(np.searchsorted(np.cumsum(before[1] ** 2) / np.sum(before[1] ** 2), 0.5) + 1)
    sides = [before[0][:, :k].T @ after[0][:, :k], before[2][:k] @ after[2][:k].T]
    mean = sum(np.sum(side**2) for side in sides) / (2 * k)
    assert update.principal_angle.value == pytest.approx(np.degrees(np.arccos(np.sqrt(mean))), rel=1e-5)
    assert 0 < update.spectrum_drift_null.value < 1
    assert 0 < update.principal_angle_null.value < 90


def test_an_adapters_rank_is_compared_with_that_of_unrelated_factors(tmp_path: Path) -> None:
    start, _ = matrices()
    model(tmp_path / "base", 0, matrix=start)
    down = torch.randn(2, 4)
    refs = [adapter(tmp_path / f"a{t}", t, t * torch.randn(6, 2), down) for t in (0, 1, 2)]
    updates, _, adapters = weight_updates._measure_weight_updates(refs, no_progress)
    nulls = {(row.first, row.last): row.gaussian.value for row in updates}
    assert 1.0 < nulls[0, 1] < 2.0  # one product of rank 2
    assert 2.0 < nulls[1, 2] < 4.0  # the difference of two
    assert [(row.num_updates, row.rank) for row in adapters] == [(0, 2), (1, 2), (2, 2)]
    assert updates[0].spectrum_drift.is_defined


def test_an_adapter_without_its_base_has_ranks_alone(tmp_path: Path) -> None:
    refs = [adapter(tmp_path / f"a{t}", t, t * torch.ones(6, 2), torch.ones(2, 4)) for t in (0, 5)]
    (update,), _, adapters = weight_updates._measure_weight_updates(refs, no_progress)
    assert update.effective_rank.value == pytest.approx(1.0, abs=1e-3)
    assert "base model" in str(update.principal_overlap.undefined)
    assert "base model" in str(update.bfloat16_changed.undefined)
    assert "base model" in str(update.spectrum_drift.undefined)
    assert "base model" in str(adapters[0].product_size.undefined)


def test_checkpoints_of_different_models_share_nothing(tmp_path: Path) -> None:
    first = model(tmp_path / "0", 0, matrix=matrices()[0])
    second = model(tmp_path / "1", 1, matrix=matrices()[0])
    save_file({"other.weight": torch.ones(2, 2)}, second.path / "model.safetensors")
    with pytest.raises(InputError, match="The checkpoints share no weight matrix"):
        weight_updates._measure_weight_updates([first, second], no_progress)
    with pytest.raises(InputError, match="needs two checkpoints of one kind, and there are 1"):
        weight_updates._measure_weight_updates([first], no_progress)
    with pytest.raises(InputError, match="of one kind, and there are 2"):
        weight_updates._measure_weight_updates([first, replace(second, kind="adapter")], no_progress)


def spectrum(step: int, tensor: str = NAME) -> GradientSpectrum:
    values = np.array([1.0, 1.0, 0.0, 0.0])
    return GradientSpectrum(
        label=SpectrumLabel(step=step, rows="weight", advantage="logged", group_size=4, tensor=tensor, shape=(6, 4)),
        singular_values=tuple(values),
        noise_floor=0.0,
        ranks=Ranks(**rank_estimates(values, 0.0)),
        nulls={"gaussian": Estimate.exact(3.5)},
    )


def checkpoints(path: Path, *times: int) -> Run:
    """Checkpoints that move along one direction."""
    start, direction = matrices()
    weights = tuple(model(path / f"{t}", t, matrix=start + 0.01 * t * direction) for t in times)
    return replace(run_of(), weights=weights)


def test_a_gradient_meets_the_change_up_to_the_next_checkpoint(tmp_path: Path) -> None:
    run = checkpoints(tmp_path, 0, 10, 25)
    first, second = weight_updates.gradients_and_updates(
        run, [spectrum(1), spectrum(11), spectrum(26), spectrum(1, "lm_head.weight")]
    )
    assert [(row.step, row.first, row.last) for row in (first, second)] == [(1, 0, 10), (11, 10, 25)]
    assert first.gradient_rank.value == pytest.approx(2.0)
    assert first.gradient_top_energy.value == pytest.approx(0.5)
    assert first.update_rank.value == pytest.approx(1.0, abs=1e-3)
    assert first.update_top_energy.value == pytest.approx(1.0)
    assert first.gaussian.value == 3.5
    still = torch.ones(6, 4)
    weights = (model(tmp_path / "still 0", 0, matrix=still), model(tmp_path / "still 9", 9, matrix=still))
    (unmoved,) = weight_updates.gradients_and_updates(replace(run, weights=weights), [spectrum(1)])
    assert unmoved.update_rank.undefined is not None
    assert unmoved.update_top_energy.undefined is not None
    adapters = tuple(replace(weights, kind="adapter") for weights in run.weights)
    assert weight_updates.gradients_and_updates(replace(run, weights=adapters), [spectrum(1)]) == ()
    assert weight_updates.gradients_and_updates(run, [spectrum(5)]) == ()
