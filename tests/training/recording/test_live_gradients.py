from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gradscope import measure_rank
from gradscope.errors import GradscopeError
from gradscope.rollouts.run_folder import read_metrics
from gradscope.rollouts.store import read_steps
from tests.training.recording.recorded import record
from tests.training.stock import answer


@pytest.mark.slow
def test_dead_groups_and_gradients_are_in_the_trainers_own_log(tmp_path: Path) -> None:
    trainer, run = record(tmp_path, gradients_every=2, rewards=answer, per_device_train_batch_size=48)
    entries = trainer.state.log_history[:3]
    groups = [[group for group in read_steps(run) if group.step == step] for step in (1, 2, 3)]
    for entry, of_step in zip(entries, groups, strict=True):
        rates = [sum(reward or 0 for reward in group.rewards) / group.size for group in of_step]
        assert entry["gradscope/frac_all_fail"] == rates.count(0) / 12
        assert entry["gradscope/frac_all_pass"] == rates.count(1) / 12
        share = entry["frac_reward_zero_std"]  # TRL's is float32
        assert entry["gradscope/frac_reward_zero_std"] == pytest.approx(share)
    assert "gradscope/effective_rank" not in entries[1]
    report = measure_rank(run, steps=[1, 3], advantages=["logged"])
    for entry, step in zip((entries[0], entries[2]), (1, 3), strict=True):
        assert entry["gradscope/grad_norm"] == pytest.approx(entry["grad_norm"], rel=1e-5)
        (point,) = [p for p in report.curve if p.step == step and p.group_size == 4]
        (geometry,) = [s for s in report.steps if s.step == step]
        (update,) = [u for u in report.formulations if u.step == step]
        assert entry["gradscope/effective_rank"] == pytest.approx(point.effective_rank.value, rel=1e-4)
        assert entry["gradscope/cancellation"] == pytest.approx(geometry.cancellation.value, rel=1e-4)
        ratio = update.signal_to_noise.value  # undefined where one group alone has a gradient
        assert entry.get("gradscope/signal_to_noise") == (None if ratio is None else pytest.approx(ratio, rel=1e-3))
    assert "gradscope/signal_to_noise" in entries[0] | entries[2]
    assert read_metrics(run)[3]["gradscope/effective_rank"] == entries[2]["gradscope/effective_rank"]


@pytest.mark.slow
def test_a_measurement_that_fails_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise GradscopeError("the batch does not fit.")

    monkeypatch.setattr("gradscope.training.recording.recorder.measure_live", fail)
    with caplog.at_level(logging.WARNING, logger="gradscope"):
        _, run = record(tmp_path, gradients_every=2, weights_every=None)
    assert [entry.getMessage() for entry in caplog.records] == [
        f"step {step}: no gradient was measured: the batch does not fit." for step in (1, 3)
    ]
    assert sorted(read_metrics(run)) == [1, 2, 3]
