"""A live TRL run that uses each batch three times, through the front door: a run folder, and replay."""

from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.diagnostics.replay.measure import replay_run
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.run_folder import RunManifest, append_metrics, checkpoint_path, write_manifest
from gradscope.rollouts.store import write_step_rollouts
from tests.gradients.end_to_end.test_trl_losses import CASES, MODEL, groups_of, recorded_run
from tests.gradients.models import tiny_model


def write_run(run: Path, updates: list, norms: list[float], settings: TrainerSettings) -> None:
    arguments = {name: value for name, value in settings.values.items() if isinstance(value, int | float | str)}
    manifest = RunManifest(
        run_id="reused",
        created_at="2025-01-01T00:00:00+00:00",
        command="test",
        config={},
        seed=0,
        model="initial",
        task="none",
        versions={},
        commit=None,
        trainer_arguments=arguments,
        advantage="grpo",
    )
    write_manifest(run, manifest)
    for step, ((inputs, weights), norm) in enumerate(zip(updates, norms, strict=True), start=1):
        write_step_rollouts(run, step, [replace(group, step=step) for group in groups_of(inputs)])
        append_metrics(run, step, {"grad_norm": norm})
        model = tiny_model(MODEL)
        model.load_state_dict(weights)
        model.save_pretrained(checkpoint_path(run, step - 1))


@pytest.mark.slow
def test_a_run_with_importance_ratios_and_clipping_is_reproduced(tmp_path: Path) -> None:
    write_run(tmp_path / "run", *recorded_run(tmp_path / "live", CASES["reused"]))
    report = replay_run(tmp_path / "run")
    errors = [step.relative_error["grad_norm"] for step in report.steps]
    assert len(errors) == 3
    assert all(error is not None and error < 1e-5 for error in errors)
    verdicts = {quantity.name: quantity.verdict for step in report.steps for quantity in step.quantities}
    assert verdicts["grad_norm"] == "match"  # the recorder of this test keeps no rewards, so they cannot be replayed
