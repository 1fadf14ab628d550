"""A stranger's number: the norm of the whole step's gradient is what TRL logged, of two runs read by no reader."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gradscope.gradients.model.policy import MeasuredPolicy, load_measured_policy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import measure_weight_spectra
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import TrainerSettings, WeightsRef
from tests.gradients.models import measured_step

pytestmark = pytest.mark.slow  # the runs of shared/data, recomputed

GROUP_SIZE = {"trl_full": 8, "trl_lora": 4}


@pytest.fixture(scope="module")
def runs(shared_data: Path) -> Path:
    return shared_data / "runs"


def objective_of(folder: Path) -> Objective:
    return Objective.from_settings(TrainerSettings(values=json.loads((folder / "RUN.json").read_text())["args"]))


def logged_grad_norm(folder: Path, step: int) -> float:
    history = json.loads((folder / "run/checkpoint-20/trainer_state.json").read_text())["log_history"]
    return next(entry["grad_norm"] for entry in history if entry["step"] == step and "grad_norm" in entry)


def policy_before(folder: Path, step: int) -> MeasuredPolicy:
    full = folder.name == "trl_full"
    first = folder / ("init_model" if full else "init_adapter")
    weights = WeightsRef(
        num_updates=step - 1,
        path=first if step == 1 else folder / f"run/checkpoint-{step - 1}",
        kind="full" if full else "adapter",
        base=None if full else str(folder / "base_model"),
    )
    return load_measured_policy(weights, device="cpu")


def groups_of(folder: Path, step: int, *, exact: bool = True) -> list[RolloutGroup]:
    """The rollouts of a step, with the ids that were sampled or, where `exact` is off, with text alone."""
    table = pq.read_table(folder / f"run/completions/completions_{step:05d}.parquet").to_pylist()
    side_file, size = folder / "true_completion_ids.parquet", GROUP_SIZE[folder.name]
    if side_file.is_file():
        ids = {row["row"]: row["completion_ids"] for row in pq.read_table(side_file).to_pylist() if row["step"] == step}
    else:
        ids = dict(enumerate(row["completion_ids"] for row in table))
    rollouts = []
    for number, row in enumerate(table):
        text = isinstance(row["prompt"], str)
        rollouts.append(
            Rollout(
                group_id=f"{step}:{number // size}",
                sample=number % size,
                row=number,
                prompt=row["prompt"] if text else "\n".join(message["content"] for message in row["prompt"]),
                completion=row["completion"] if text else row["completion"][0]["content"],
                messages=None if text else tuple(row["prompt"]),
                completion_ids=tuple(ids[number]) if exact else None,
                reward=row["accuracy_reward"],
                advantage=row["advantage"],
            )
        )
    starts = range(0, len(rollouts), size)
    names = [f"{step}:{start // size}" for start in starts]
    return [
        RolloutGroup(step=step, group_id=name, prompt_id=name, rollouts=tuple(rollouts[start : start + size]))
        for start, name in zip(starts, names, strict=True)
    ]


def measured(folder: Path, weights: int, step: int, *, exact: bool = True, **options):
    """A step at the weights before another one."""
    groups = groups_of(folder, step, exact=exact)
    return measured_step(policy_before(folder, weights), groups, objective_of(folder), **options)


@pytest.mark.parametrize(
    ("step", "options"),
    [
        *((step, {"engine": "stream"}) for step in (1, 11, 16)),
        (6, {"engine": "stream", "verify": "all"}),
        (6, {"engine": "loop", "verify": "all"}),
    ],
)
@pytest.mark.parametrize("run", GROUP_SIZE)
def test_step_gradient_has_the_logged_norm(runs, run, step, options):
    measurement = measured(runs / run, step, step, **options)
    assert measurement.num_inferred_ids == 0
    assert np.sqrt(measurement.logged_gram.sum()) == pytest.approx(logged_grad_norm(runs / run, step), rel=1e-5)
    assert (measurement.kl_gram is None) == (run == "trl_full")


@pytest.mark.parametrize(
    ("run", "step", "off"),
    [("trl_full", 1, 0.018), ("trl_full", 6, 0.0), ("trl_lora", 6, 0.16), ("trl_lora", 11, 0.011)],
)
def test_retokenized_text_is_off_by_what_was_measured_apart(runs, run, step, off):
    measurement = measured(runs / run, step, step, exact=False)
    logged = logged_grad_norm(runs / run, step)
    error = abs(np.sqrt(measurement.logged_gram.sum()) - logged) / logged
    assert error == pytest.approx(off, rel=0.2, abs=1e-5)
    assert measurement.num_inferred_ids == measurement.num_rollouts
    assert any("re-tokenized" in note for note in measurement.notes)


def test_weights_after_the_update_do_not_reproduce_it(runs):
    norm = np.sqrt(measured(runs / "trl_full", 6, 5).logged_gram.sum())
    assert norm != pytest.approx(logged_grad_norm(runs / "trl_full", 5), rel=0.01)


def test_kl_alone_moves_a_step_whose_groups_are_all_degenerate(runs):
    """Step 7's own weights are not on disk; at those of step 6 its policy part is zero all the same."""
    measurement = measured(runs / "trl_lora", 6, 7)
    assert measurement.policy_gram.sum() == 0.0
    assert measurement.frac_kl == pytest.approx(1.0)
    assert 1e-5 < np.sqrt(measurement.logged_gram.sum()) < 1e-3


def test_weight_spectra_hold_the_step_gradient(runs):
    folder = runs / "trl_lora"
    policy = policy_before(folder, 11)
    spectra = measure_weight_spectra(prepare_step(policy, groups_of(folder, 11), objective_of(folder)))
    norm = np.sqrt(sum(float(np.square(spectrum.singular_values).sum()) for spectrum in spectra))
    assert norm == pytest.approx(logged_grad_norm(folder, 11), rel=1e-5)
    assert [spectrum.tensor for spectrum in spectra] == list(policy.trainable)
