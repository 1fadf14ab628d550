import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from gradscope.diagnostics.inputs.step_loss import _batch_starts, losses_at
from gradscope.gradients.plan.objective import Objective
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from tests.diagnostics.made_up_runs import group_of, run_of

KL = {"beta": 0.1}
ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_target": 2.0}


def full(num_updates: int) -> WeightsRef:
    return WeightsRef(num_updates=num_updates, path=Path(f"checkpoint-{num_updates}"), kind="full")


def all_of(weights: WeightsRef):
    return ((weights, 1.0),)


def run_with(*weights: WeightsRef, settings=None, metrics=None, trl: bool = True) -> Run:
    run = run_of(settings=settings or {}, metrics=metrics)
    return replace(run, weights=weights, source=replace(run.source, format="trl" if trl else "gradscope"))


def loss_of(run: Run, step: int):
    return next(losses_at(run, Objective.from_settings(run.settings), step))


def test_the_first_update_of_a_batch_has_ratio_one_and_later_ones_the_weights_that_sampled():
    run = run_with(full(0), full(3), settings={"num_iterations": 3})
    assert not loss_of(run, 1).objective.importance_ratio
    assert loss_of(run, 3).objective.importance_ratio
    assert loss_of(run, 3).sampled_with == full(0)
    assert loss_of(run, 3).weights == (full(0),)
    assert loss_of(run, 5).sampled_with == full(3)
    assert loss_of(run, 8).sampled_with is None  # not on disk
    # a resumed run samples at once whatever the arguments say
    metrics = {1: {"reward": 1.0}, 4: {"reward": 1.0}, 6: {"reward": 1.0}}
    run = run_with(*map(full, range(6)), settings={"num_iterations": 2}, metrics=metrics)
    resumed = replace(run, repeats={2: 1, 3: 1, 5: 4})
    assert [_batch_starts(resumed, step)[0] for step in range(1, 7)] == [1, 1, 1, 4, 4, 6]
    assert loss_of(resumed, 5).sampled_with == full(3)
    assert not loss_of(resumed, 4).objective.importance_ratio


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"per_device_train_batch_size": 4}, None),
        ({"per_device_train_batch_size": 2}, "micro_batches_unknown"),
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, "micro_batches_unknown"),
        ({"per_device_train_batch_size": 4, "generation_batch_size": 8}, "micro_batches_unknown"),
        ({}, "micro_batches_unknown"),
    ],
)
def test_a_step_whose_rollouts_fit_one_micro_batch_has_its_entropy_bonus(settings, cause):
    run = run_with(full(0), settings={"entropy_coef": 0.1, **settings})
    objective = loss_of(replace(run, groups=(group_of([0, 1, 0, 1], step=1),)), 1).objective
    assert (objective.cannot and objective.cannot.cause) == cause
    assert objective.entropy_coef == 0.1
    if not settings:
        assert objective.cannot.advice.startswith("Give per_device_train_batch_size with --run-config")


def test_a_run_that_may_have_been_resumed_has_several_losses():
    metrics = {step: {"reward": 1.0} for step in (2, 4)}
    run = run_with(*map(full, range(4)), settings={"num_iterations": 2}, metrics=metrics)
    windowed = replace(run, windows={2: 2, 4: 2})
    losses = list(losses_at(windowed, Objective.from_settings(run.settings), 4))
    assert [(loss.sampled_with, loss.resumed) for loss in losses] == [(full(2), False), (None, True)]
    assert not losses[1].objective.importance_ratio
    settings = {**KL, "sync_ref_model": True, "ref_model_sync_steps": 1}
    reused = run_with(*map(full, range(4)), settings={**settings, "num_iterations": 2})
    assert [len(loss_of(reused, step).reference) for step in (1, 2, 3, 4)] == [1, 1, 3, 3]  # as of where it was sampled
    synced = run_with(*map(full, range(4)), settings=settings)
    losses = list(losses_at(synced, Objective.from_settings(synced.settings), 3))
    mixed = (full(1), 0.6), (full(2), 0.6)
    assert [loss.reference for loss in losses] == [(*all_of(full(0)), *mixed[start:]) for start in range(3)]
    without_kl = run_with(*map(full, range(4)), settings={**settings, "beta": 0.0})
    assert len(list(losses_at(without_kl, Objective.from_settings(without_kl.settings), 3))) == 1


@pytest.mark.parametrize(("values", "number"), [({}, 2), ({"use_vllm": True}, 1)])
def test_the_ratio_of_a_script_may_be_to_what_it_logged_of_its_sampler(values, number):
    run = run_with(full(0), settings=values)
    script = replace(run, source=replace(run.source, format="generic"))
    losses = list(losses_at(script, Objective.from_settings(run.settings), 1))
    assert [loss.by_logged for loss in losses] == [False, True][:number]
    assert losses[-1].objective.ratio_to_logged == (number == 2)


@pytest.mark.parametrize("per_generation", [1, 4])
def test_split_or_joined_batches_have_no_start(per_generation):
    settings = {"num_iterations": 2, "gradient_accumulation_steps": 2, "steps_per_generation": per_generation}
    assert _batch_starts(run_with(settings=settings), 4) == [4]


def test_the_reference_is_the_start_of_training():
    assert loss_of(run_with(full(0), full(1), settings=KL), 2).reference == all_of(full(0))
    assert loss_of(run_with(full(1), settings=KL), 2).reference == ()
    assert loss_of(run_with(full(0)), 1).reference == ()
    from_0 = replace(run_with(full(0), settings=KL), groups=(group_of([1, 0], step=0),))
    assert loss_of(from_0, 0).reference == all_of(full(0))
    assert loss_of(replace(from_0, weights=(full(-1), full(0))), 1).reference == all_of(full(-1))


def test_a_reference_that_is_replaced_is_the_checkpoint_of_then():
    settings = {**KL, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0}
    run = run_with(full(0), full(2), settings=settings)
    assert [loss_of(run, step).reference for step in (1, 2, 3, 4)] == [all_of(full(number)) for number in (0, 0, 2, 2)]
    assert "the weights after 4 updates" in str(loss_of(run, 5).reason)
    mixed = run_with(full(0), full(2), settings={**settings, "ref_model_mixup_alpha": 0.6})
    assert loss_of(mixed, 2).reference == all_of(full(0))
    assert loss_of(mixed, 4).reference == (*all_of(full(0)), (full(2), 0.6))
    assert loss_of(mixed, 4).weights == (full(0), full(2))
    assert loss_of(mixed, 5).reason.cause == "reference_missing"
    without_start = replace(mixed, weights=(full(2),))
    assert "the weights before the first update" in loss_of(without_start, 3).reason.text


def adapter(folder: Path, num_updates: int, b: float = 1.0) -> WeightsRef:
    folder.mkdir(parents=True, exist_ok=True)
    pair = {"lora_A.weight": torch.ones(1, 2), "lora_B.weight": torch.full((2, 1), b)}
    tensors = {f"base_model.model.q_proj.{name}": tensor for name, tensor in pair.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    return WeightsRef(num_updates=num_updates, path=folder, kind="adapter", base="base")


def test_the_reference_of_an_adapter_is_its_copy_or_its_base(tmp_path: Path):
    fresh = adapter(tmp_path / "fresh", 0, b=0.0)
    assert loss_of(run_with(fresh, settings=KL, trl=False), 1).reference == ()
    assert loss_of(run_with(fresh, settings=KL, trl=False), 1).reason is None
    saved, copy = adapter(tmp_path / "checkpoint-1", 1), adapter(tmp_path / "checkpoint-1" / "ref", 0)
    assert loss_of(run_with(saved, settings=KL), 2).reference == all_of(copy)
    start, saved = adapter(tmp_path / "start", 0), adapter(tmp_path / "without-copy", 1)  # TRL made the adapter itself
    assert loss_of(run_with(start, saved, settings=KL), 2).reference == ()
    assert loss_of(run_with(start, saved, settings=KL), 2).reason is None


@pytest.mark.parametrize(("kl", "is_start"), [(0.0, True), (0.2, False)])
def test_without_checkpoints_of_trl_the_first_kl_decides(tmp_path: Path, kl: float, is_start: bool):
    start = adapter(tmp_path / "start", 0)
    run = run_with(start, settings=KL, metrics={1: {"kl": kl}}, trl=False)
    assert loss_of(run, 1).reference == (all_of(start) if is_start else ())
    for changes in ({"windows": {1: 2}}, {"metrics": {}}, {"metrics": {1: {"kl": float("nan")}}}):
        assert loss_of(replace(run, **changes), 1).reason.cause == "reference_missing"


@pytest.mark.parametrize(("entropy", "coefficient"), [(1.9, 0.15), (2.1, 0.0)])
def test_an_adaptive_bonus_is_what_the_update_before_left(tmp_path: Path, entropy: float, coefficient: float):
    assert loss_of(run_with(full(0), settings=ADAPTIVE), 1).objective.entropy_coef == 0.0  # starts without one
    state = {"entropy_coef": 0.15, "last_world_entropy": entropy}
    weights = WeightsRef(num_updates=1, path=tmp_path, kind="full")
    logged = run_with(weights, settings=ADAPTIVE, metrics={1: {"entropy_coef": 0.15, "entropy": entropy}})
    assert loss_of(logged, 2).objective.entropy_coef == coefficient
    (tmp_path / "entropy_ctrl_state.json").write_text(json.dumps(state))
    assert loss_of(replace(logged, metrics={}), 2).objective.entropy_coef == coefficient


HIGH = TrainerSettings(values={**ADAPTIVE, "top_entropy_quantile": 0.5})  # the logged entropy is of all tokens


@pytest.mark.parametrize("changes", [{"metrics": {}}, {"windows": {1: 2}}, {"settings": HIGH}])
def test_an_adaptive_bonus_without_its_state_is_refused(changes):
    run = run_with(full(1), settings=ADAPTIVE, metrics={1: {"entropy_coef": 0.1, "entropy": 1.0}})
    assert loss_of(replace(run, **changes), 2).reason.cause == "loss_not_on_disk"
