from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gradscope import measure_degeneracy, replay_run
from gradscope.rollouts.run_folder import read_manifest, read_metrics
from gradscope.rollouts.store import read_steps
from tests.training.recording.recorded import assert_reproduced, record


@pytest.mark.slow
def test_rewards_scaled_by_the_batch_are_trls_own(tmp_path: Path) -> None:
    _, run = record(tmp_path, scale_rewards="batch")
    assert read_manifest(run).advantage == "trl"
    for step in replay_run(run).steps:
        assert {q.verdict for q in step.quantities} == {"match"}
        assert len(step.quantities) == 4


@pytest.mark.slow
def test_a_batch_of_two_iterations_is_recorded_once_with_the_samplers_logprobs(tmp_path: Path) -> None:
    _, run = record(tmp_path, num_iterations=2, max_steps=4)
    report = replay_run(run)
    assert_reproduced(report, steps=(1, 3))
    assert all(step.logprob_difference is not None for step in report.steps)
    assert all(step.logprob_difference.max < 1e-5 for step in report.steps if step.logprob_difference)
    assert sorted(read_metrics(run)) == [1, 2, 3, 4]
    assert measure_degeneracy(run).num_groups == 8
    assert "A generation batch that feeds several updates is recorded once, at the first of them." in (
        read_manifest(run).notes
    )


@pytest.mark.slow
def test_a_batch_that_is_shared_out_says_why_its_norm_cannot_be_formed(tmp_path: Path) -> None:
    _, run = record(tmp_path, per_device_train_batch_size=8, steps_per_generation=2, max_steps=4)
    report = replay_run(run)
    assert [step.step for step in report.steps] == [1, 3]
    assert {step.cause for step in report.steps} == {
        "each update sees a shuffled part of the logged batch, and which is not logged"
    }
    groups = read_steps(run)
    assert [group.size for group in groups] == [4] * 8
    assert all(rollout.logprobs is not None for group in groups for rollout in group.rollouts)


@pytest.mark.slow
def test_advantages_of_a_subclass_are_recorded_as_they_are(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    class Doubled(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            ones = torch.ones_like(output["completion_ids"], dtype=torch.float32)
            output["advantages"] = 2 * output["advantages"][:, None] * ones
            return output

    _, run = record(tmp_path, trainer=Doubled)
    assert read_manifest(run).advantage == "custom"
    report = replay_run(run)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    causes = {quantity.cause for step in report.steps for quantity in step.quantities if quantity.name == "advantage"}
    assert causes == {"no advantages were logged, or one per token"}


@pytest.mark.slow
def test_advantages_that_nobody_here_can_make_are_not_judged(tmp_path: Path) -> None:
    _, run = record(tmp_path, multi_objective_aggregation="normalize_then_sum", max_steps=1)
    (step,) = replay_run(run).steps
    assert step.relative_error["grad_norm"] < 1e-5
    assert "a subclass of the trainer made them, and how is not recorded" in {q.cause for q in step.quantities}
