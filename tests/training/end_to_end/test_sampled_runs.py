"""Whole runs with dynamic and reallocated sampling: the record, and that the engine reproduces what TRL logged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope import measure_degeneracy, measure_rank, replay_run
from gradscope.advantages.registry import compute_step_advantages
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run_folder import read_manifest, read_metrics
from gradscope.rollouts.store import read_steps
from tests.trained import MakeRun

pytestmark = pytest.mark.slow  # whole runs of TRL

SAMPLINGS = ("dynamic", "reallocated")
EVERYTHING: dict[str, Any] = {"gradient_accumulation_steps": 4, "lora_rank": 2, "beta": 0.1, "temperature": 0.7}


def steps_of(run: Path) -> list[list[RolloutGroup]]:
    groups = read_steps(run)
    return [[group for group in groups if group.step == step] for step in (1, 2, 3)]


def dead(group: RolloutGroup) -> bool:
    return len(set(group.rewards)) == 1


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_logged_number_is_reproduced(short_run: MakeRun, sampling: str) -> None:
    report = replay_run(short_run(sampling=sampling, **EVERYTHING), steps=(1, 3))
    assert [step.verdict for step in report.steps] == ["match", "match"]
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    assert all(step.logged["grad_norm"] > 0.001 for step in report.steps)


@pytest.mark.parametrize(("sampling", "name"), [("dynamic", "token_critic"), ("reallocated", "spo")])
def test_the_norm_is_reproduced_for_other_advantages(short_run: MakeRun, sampling: str, name: str) -> None:
    report = replay_run(short_run(sampling=sampling, advantage=name), steps=(1, 3))
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)


def test_an_odd_number_of_prompts(short_run: MakeRun) -> None:
    """Half of the groups' rollouts are then no whole number of groups to TRL."""
    report = replay_run(short_run(sampling="reallocated", num_prompts=3), steps=(1, 3))
    assert {step.verdict for step in report.steps} - {"no_gradient"} == {"match"}


def test_dynamic_batches_are_full_of_live_groups(short_run: MakeRun) -> None:
    settings = {"train_prompts": 60, "max_resampling": 8}
    run, metrics = short_run(sampling="dynamic", **settings), None
    for step, groups in enumerate(steps_of(run), start=1):
        metrics = read_metrics(run)[step]
        assert not any(map(dead, groups))
        assert len({group.prompt_id for group in groups}) == 4
        assert metrics["num_groups"] == 4
        assert metrics["num_sampled_groups"] == 4 + metrics["num_resampled_groups"]
        assert metrics["num_sampled_rollouts"] == 4 * metrics["num_sampled_groups"]
        remaining = sum(len(rollout.completion_ids or ()) for group in groups for rollout in group.rollouts)
        assert metrics["num_sampled_tokens"] - metrics["num_discarded_tokens"] == remaining
    assert metrics is not None
    assert metrics["num_sampled_degenerate_groups"] > 0
    # the first round is what fixed sampling has
    fixed = {group.prompt_id: group for group in steps_of(short_run(**{"train_prompts": 60}))[0]}
    first = {group.prompt_id: group for group in steps_of(run)[0]}
    live = {prompt for prompt, group in fixed.items() if not dead(group)}
    assert live <= first.keys()
    assert all(first[prompt].rewards == fixed[prompt].rewards for prompt in live)
    # dead groups stay where nothing replaces them
    groups = [group for step in steps_of(short_run(sampling="dynamic", max_resampling=1)) for group in step]
    assert any(map(dead, groups))
    assert {rollout.advantage for group in groups if dead(group) for rollout in group.rollouts} == {0.0}


def test_reallocated_groups_are_ragged_and_add_up(short_run: MakeRun) -> None:
    run = short_run(sampling="reallocated")
    sizes = set()
    for step, groups in enumerate(steps_of(run), start=1):
        metrics = read_metrics(run)[step]
        assert sum(group.size for group in groups) == 16 == metrics["num_sampled_rollouts"]
        assert [rollout.row for group in groups for rollout in group.rollouts] == list(range(16))
        assert metrics["num_moved_rollouts"] == sum(max(group.size - 4, 0) for group in groups)
        assert metrics["num_discarded_tokens"] == 0
        for group in groups:
            solved, unsolved = (all(reward == value for reward in group.rewards[:2]) for value in (1.0, 0.0))
            assert group.size == 2 if solved and group.size < 4 else group.size == 4 or unsolved
        expected = compute_step_advantages("grpo", [np.array(group.rewards, dtype=np.float64) for group in groups])
        for group, advantages in zip(groups, expected, strict=True):
            np.testing.assert_allclose([rollout.advantage for rollout in group.rollouts], advantages, rtol=1e-6)
        assert metrics["reward"] == pytest.approx(np.mean([r for group in groups for r in group.rewards]))
        assert metrics["frac_reward_zero_std"] == np.mean([dead(group) for group in groups])
        sizes |= {group.size for group in groups}
    assert len(sizes) > 1


def test_the_manifest_and_the_report_say_how_groups_came_about(short_run: MakeRun) -> None:
    run = short_run(sampling="dynamic")
    assert read_manifest(run).config["sampling"] == "dynamic"
    missing = measure_degeneracy(run).source.missing
    metrics = read_metrics(run).values()
    counts = ("num_sampled_groups", "num_sampled_degenerate_groups")
    sampled, num_dead = (int(sum(values[name] for values in metrics)) for name in counts)
    assert missing[0] == (
        f"Dynamic sampling replaced dead groups by those of other prompts (of {sampled} sampled groups {num_dead} "
        "were dead); the share of dead groups in this log is then a lower bound."
    )
    sentences = " ".join(measure_degeneracy(run).findings)
    assert "and the policy's own share of dead groups is no smaller" in sentences
    assert "Resampling dead groups" not in sentences
    report = measure_degeneracy(short_run(sampling="reallocated"))
    assert report.group_size is None
    assert report.source.missing[0].startswith("Rollouts were moved from prompts that a probe solved to prompts")
    assert all(row.logged == row.frac_reward_zero_std.value for row in report.by_step)


def test_ranks_of_ragged_groups(short_run: MakeRun) -> None:
    report = measure_rank(short_run(sampling="reallocated", advantage="spo"), steps=[1], advantages=["logged", "all"])
    full = {s.label.advantage: s.ranks.effective_rank.value for s in report.spectra if s.label.group_id is None}
    assert full["logged"] is not None
    assert len({point.group_size for point in report.curve if point.advantage == "sign"}) > 1
