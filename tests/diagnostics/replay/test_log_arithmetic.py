"""Rewards, advantages and the degenerate share of a step, against hand-worked numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.advantages.registry import named_formulation
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.replay.log_arithmetic import replay_advantages, replay_rewards, replay_zero_std
from gradscope.reason import Reason
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of


def measured(run: Run, step: int = 1) -> MeasuredStep:
    reason = Reason("not_recomputed", "not computed")
    return MeasuredStep(step=step, groups=run.groups_at(step), weights=None, gram=None, reason=reason)


def one_step(settings: Mapping[str, object] | None = None, **logged: float) -> Run:
    mixed = group_of([1.0, 0.0], step=1, prompt="a", advantages=[0.5, -0.5])
    dead = group_of([1.0, 1.0], step=1, prompt="b", advantages=[0.0, 0.0])
    return run_of(mixed, dead, metrics={1: logged}, settings=settings)


NOTE = Reason("batch_split", "a note")
GROUP_0 = group_of([1.0, 0.0], step=0, prompt="a")


def test_the_mean_reward_matches() -> None:
    run = one_step(reward=0.75)
    quantity, value, error = replay_rewards(run, measured(run))
    assert (quantity.verdict, value, error) == ("match", 0.75, 0.0)


def test_another_mean_reward_is_a_mismatch_with_both_numbers() -> None:
    run = one_step(reward=0.5)
    quantity, value, error = replay_rewards(run, measured(run))
    assert (quantity.verdict, value, error) == ("mismatch", 0.75, 0.5)
    assert quantity.cause == "the log says 0.5, its rollouts say 0.75"


def test_the_degenerate_share_matches() -> None:
    run = one_step(frac_reward_zero_std=0.5)
    assert replay_zero_std(run, measured(run))[0].verdict == "match"


def test_a_logged_zero_is_compared_absolutely() -> None:
    run = one_step(frac_reward_zero_std=0.0)
    quantity, value, error = replay_zero_std(run, measured(run))
    assert (quantity.verdict, value, error) == ("mismatch", 0.5, 0.5)


def test_dr_grpo_advantages_match() -> None:
    run = one_step(settings={"scale_rewards": "none"})
    quantity, size, error = replay_advantages(run, measured(run))
    assert (quantity.verdict, size, error) == ("match", 0.25, 0.0)


def test_our_own_formulation_comes_from_the_manifest() -> None:
    group = group_of([1.0, 0.0], step=1, prompt="a", advantages=[1.0, -1.0])
    run = run_of(group, settings={"advantage": "sign", "scale_rewards": "none"})
    assert replay_advantages(run, measured(run))[0].verdict == "match"


def test_batch_scaled_advantages() -> None:
    # rewards 1 0 1 1: std (ddof 1) 0.5, so the mixed group gets +-0.5 / 0.5001
    mixed = group_of([1.0, 0.0], step=1, prompt="a", advantages=[0.5 / 0.5001, -0.5 / 0.5001])
    dead = group_of([1.0, 1.0], step=1, prompt="b", advantages=[0.0, 0.0])
    run = run_of(mixed, dead, settings={"scale_rewards": "batch"})
    assert replay_advantages(run, measured(run))[0].verdict == "match"


def test_dead_groups_of_unequal_size_count_by_rollout_but_for_our_own_reallocated_runs() -> None:
    groups = group_of([1.0, 0.0, 0.0], step=1, prompt="a"), group_of([1.0], step=1, prompt="b")
    for settings, logged in (({}, 0.25), ({"sampling": "dynamic"}, 0.25), ({"sampling": "reallocated"}, 0.5)):
        run = run_of(*groups, metrics={1: {"frac_reward_zero_std": logged}}, settings=settings)
        assert replay_zero_std(run, measured(run))[0].verdict == "match"


def test_formulations_of_the_step_take_groups_of_any_size() -> None:
    # three of four pass
    first = group_of([1.0, 0.0, 1.0], step=1, prompt="a", advantages=[0.25, -0.75, 0.25])
    second = group_of([1.0], step=1, prompt="b", advantages=[0.25])
    run = run_of(first, second, settings={"advantage": "batch_mean"})
    assert replay_advantages(run, measured(run))[0].verdict == "match"


def test_opo_takes_lengths_from_the_log() -> None:
    group = group_of([1.0, 0.0], step=1, prompt="a", advantages=[0.75, -0.25])
    long = tuple(
        replace(rollout, completion_ids=(7,) * length) for rollout, length in zip(group.rollouts, (1, 3), strict=True)
    )
    run = run_of(replace(group, rollouts=long), settings={"advantage": "opo"})
    assert replay_advantages(run, measured(run))[0].verdict == "match"
    quantity, *_ = replay_advantages(run_of(group, settings={"advantage": "opo"}), measured(run_of(group)))
    assert (quantity.verdict, quantity.reason) == ("cannot", "ids_missing")


def test_gdpo_takes_functions_from_the_log() -> None:
    # +-.5 of one function of weight 2 in a group of two: 2 x .5 / (.7071 + 1e-4), then over its std over the step
    scaled = 2 * 0.5 / (0.5**0.5 + 1e-4)
    value = scaled / ((2 * scaled**2 / 3) ** 0.5 + 1e-4)
    groups = (
        group_of([1.0, 0.0], step=1, prompt="a", functions={"f": [1.0, 0.0]}, advantages=[value, -value]),
        group_of([1.0, 1.0], step=1, prompt="b", functions={"f": [1.0, 1.0]}, advantages=[0.0, 0.0]),
    )
    run = run_of(*groups, settings={"advantage": "gdpo", "reward_weights": [2.0]})
    assert replay_advantages(run, measured(run))[0].verdict == "match"
    bare = run_of(group_of([1.0, 0.0], step=1, prompt="a", advantages=[1.0, -1.0]), settings={"advantage": "gdpo"})
    quantity, *_ = replay_advantages(bare, measured(bare))
    assert (quantity.verdict, quantity.reason) == ("cannot", "rewards_missing")


def test_code_is_not_run_because_a_log_names_it(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text(
        "from gradscope import advantage_formulation\n@advantage_formulation()\ndef own(r):\n    return 2 * r - 1\n"
    )
    name, group = f"{file}:own", group_of([1.0, 0.0], step=1, prompt="a", advantages=[1.0, -1.0])
    run = run_of(group, settings={"advantage": name, "advantage_digest": "0" * 64})
    assert replay_advantages(run, measured(run))[0].reason == "code_not_named"
    named_formulation(name)
    assert replay_advantages(run, measured(run))[0].reason == "code_changed"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    same = run_of(group, settings={"advantage": name, "advantage_digest": digest})
    assert replay_advantages(same, measured(same))[0].verdict == "match"


def test_other_advantages_are_a_mismatch() -> None:
    run = one_step(settings={"scale_rewards": "group"})
    quantity, _, error = replay_advantages(run, measured(run))
    assert quantity.verdict == "mismatch"
    assert "differs from grpo of its group by 0.21" in str(quantity.cause)
    assert error == pytest.approx(0.5 / (0.5**0.5 + 1e-4) - 0.5)


def test_without_settings_a_difference_is_no_mismatch() -> None:
    run = one_step()
    quantity, _, _ = replay_advantages(run, measured(run))
    assert quantity.verdict == "cannot"
    assert quantity.reason == "settings_unknown"


@pytest.mark.parametrize(
    ("run", "replay", "cause"),
    [
        (run_of(group_of([1.0, None], step=1, prompt="a"), metrics={1: {"reward": 1.0}}), replay_rewards, "no reward"),
        (run_of(group_of([1.0, None], step=1, prompt="a")), replay_zero_std, "no reward"),
        (run_of(group_of([1.0, None], step=1, prompt="a", advantages=[0.0, 0.0])), replay_advantages, "no reward"),
        (run_of(group_of([1.0, 0.0], step=1, prompt="a")), replay_rewards, "logged no mean reward"),
        (run_of(group_of([1.0, 0.0], step=1, prompt="a")), replay_zero_std, "logged no frac_reward_zero_std"),
        (run_of(group_of([1.0, 0.0], step=1, prompt="a")), replay_advantages, "no advantages were logged"),
        (run_of(group_of([1.0, 0.0], step=1, prompt="a"), notes={1: NOTE}), replay_rewards, "a note"),
        (run_of(group_of([1.0, 0.0], step=1, prompt="a"), notes={1: NOTE}), replay_zero_std, "a note"),
        (replace(one_step(), windows={1: 3}), replay_rewards, "the mean of 3 steps"),
        (replace(one_step(), windows={1: 3}), replay_zero_std, "the mean of 3 steps"),
        (replace(one_step(), repeats={1: 0}, groups=(GROUP_0,)), replay_rewards, "sampled for step 0"),
        (
            run_of(group_of([1.0, 0.0], step=1, prompt="a", advantages=[0.5, -0.5]), settings={"scale_rewards": "odd"}),
            replay_advantages,
            "scale_rewards = odd",
        ),
    ],
)
def test_what_cannot_be_replayed_says_why(run: Run, replay, cause: str) -> None:
    quantity, value, error = replay(run, measured(run))
    assert quantity.verdict == "cannot"
    assert cause in str(quantity.cause)
    assert (value, error) == (None, None)


@pytest.mark.parametrize(("logged", "word"), [(math.nan, "NaN"), (math.inf, "Infinity")])
def test_a_logged_number_that_is_not_finite_is_a_mismatch_without_an_error(logged: float, word: str) -> None:
    run = one_step(reward=logged)
    quantity, value, error = replay_rewards(run, measured(run))
    assert (quantity.verdict, value, error) == ("mismatch", 0.75, None)
    assert quantity.cause == f"the log says {word}, its rollouts say 0.75"


def test_with_the_whole_batchs_spread_the_share_is_all_or_nothing() -> None:
    run = one_step(settings={"scale_rewards": "batch"}, frac_reward_zero_std=0.0)
    assert replay_zero_std(run, measured(run))[:2][1] == 0.0
    assert replay_zero_std(run, measured(run))[0].verdict == "match"


def test_rollouts_that_nothing_scored_are_trls_to_judge() -> None:
    """Three known rewards with mean 2/3; the fourth has no part in its group."""
    group = group_of([1.0, None, 0.0, 1.0], step=1, prompt="a")
    run = run_of(group, metrics={1: {"reward": 2 / 3}}, settings={"trl_version": "1.16.0"})
    assert replay_rewards(run, measured(run))[0].reason == "rewards_missing"
    of_trl = replace(run, source=replace(run.source, format="trl"))
    assert replay_rewards(of_trl, measured(of_trl))[0].verdict == "match"
    ours = replace(of_trl, settings=TrainerSettings(values={"advantage": "rloo"}))
    assert replay_rewards(ours, measured(ours))[0].reason == "rewards_missing"


def rounded_run(noise: float, logged_share: float, *, live: bool = True) -> Run:
    """Eight rewards of 0.41666, whose float32 mean is 3e-8 off, and a live group."""
    equal = group_of([0.41666] * 8, step=1, prompt="a", advantages=[-noise] * 8)
    other = group_of([1.0, 0.0] * 4, step=1, prompt="b", advantages=[0.935239, -0.935239] * 4)
    groups = (equal, other) if live else (equal,)
    run = run_of(*groups, metrics={1: {"frac_reward_zero_std": logged_share}}, settings={"trl_version": "1.16.0"})
    return replace(run, source=replace(run.source, format="trl"))


def test_equal_rewards_that_float32_keeps_apart_are_no_mismatch() -> None:
    run = rounded_run(2.98e-4, 0.0)
    share, value, error = replay_zero_std(run, measured(run))
    assert (share.verdict, value, error) == ("match", 0.5, 0.5)
    assert "0.5 of the rollouts are in groups of equal rewards, and the trainer counted 0: TRL's float32" in share.cause
    quantity, _, largest = replay_advantages(run, measured(run))
    assert quantity.verdict == "match"
    assert largest < 1e-5
    assert "8 rollouts of equal rewards have advantages of up to 0.0003 where 0 is exact" in quantity.cause
    assert "noise: 0.00032 of what the largest advantage makes" in quantity.cause
    alone = rounded_run(2.98e-4, 0.0, live=False)
    assert "noise: the whole step" in replay_advantages(alone, measured(alone))[0].cause


@pytest.mark.parametrize(("noise", "share"), [(2.98e-4, 0.25), (0.5, 0.0), (0.0, 0.0)])
def test_what_rounding_does_not_explain_is_a_mismatch(noise: float, share: float) -> None:
    run = rounded_run(noise, share)
    verdicts = (replay_zero_std(run, measured(run))[0].verdict, replay_advantages(run, measured(run))[0].verdict)
    assert "mismatch" in verdicts


def test_functions_that_share_a_name_leave_rewards_unknown() -> None:
    group = group_of([None, None], step=1, functions={"reward": [1.0, 0.0]}, advantages=[0.5, -0.5])
    run = run_of(group, metrics={1: {"reward": 1.0, "frac_reward_zero_std": 0.0}}, settings={"trl_version": "1.16.0"})
    run = replace(run, source=replace(run.source, format="trl"))
    for replay in (replay_rewards, replay_zero_std, replay_advantages):
        quantity, _, _ = replay(run, measured(run))
        assert (quantity.verdict, quantity.reason) == ("cannot", "rewards_missing")
        assert quantity.advice == "Give each function a __name__ of its own in the next run."
