"""TRL's own arithmetic as the oracle, in torch, on random rewards with gaps; and what is refused."""

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gradscope.advantages.registry import named_formulation
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.replay.log_arithmetic import (
    Outcome,
    _trainer_batch,
    _trl_batch,
    batch_of_step,
    replay_advantages,
    replay_rewards,
    replay_zero_std,
)
from gradscope.reason import Reason
from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields

G, WEIGHTS = 4, [1.0, 0.3]
FORMS = [*(("sum_then_normalize", scale) for scale in ("group", "batch", "none")), ("normalize_then_sum", "group")]


def random_groups(seed: int, *, gaps: bool) -> tuple[list, torch.Tensor]:
    """Groups with two reward functions, and the same as TRL's table [N, F]."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 3, (3 * G, 2)).astype(np.float64)
    table[:G] = 1.0  # a dead group
    if gaps:
        table[rng.random(table.shape) < 0.3] = np.nan
        table[G] = np.nan  # a rollout that nothing scored
    groups = []
    for start in range(0, len(table), G):
        part = table[start : start + G]
        scalar = [None if np.isnan(row).all() else float(np.nansum(row * WEIGHTS)) for row in part]
        columns = {f"f{k}": [None if np.isnan(v) else float(v) for v in part[:, k]] for k in range(2)}
        groups.append(group_of(scalar, step=1, prompt=str(start), functions=columns))
    return groups, torch.tensor(table)


def nanstd(values: torch.Tensor, dim=None) -> torch.Tensor:
    mean = torch.nanmean(values, dim=dim, keepdim=True)
    count = (~values.isnan()).sum(dim=dim, keepdim=True)
    correction = torch.where(count > 1, count.double() / (count - 1), torch.nan)
    return (torch.nanmean((values - mean) ** 2, dim=dim, keepdim=True) * correction).sqrt()


def by_trl(table: torch.Tensor, aggregation: str, scale: str) -> tuple[torch.Tensor, float]:
    weights, unscored = torch.tensor(WEIGHTS, dtype=torch.float64), table.isnan().all(dim=1)
    if aggregation == "normalize_then_sum":
        grouped = table.view(-1, G, 2)
        scaled = (grouped - torch.nanmean(grouped, 1, keepdim=True)) / (nanstd(grouped, 1) + 1e-4)
        rewards = (scaled.view(-1, 2) * weights).nansum(dim=1)
        rewards[unscored] = torch.nan
        std = nanstd(rewards).expand_as(rewards)
        advantages = (rewards - torch.nanmean(rewards)) / (std + 1e-4)
    else:
        rewards = (table * weights).nansum(dim=1)
        rewards[unscored] = torch.nan
        grouped = rewards.view(-1, G)
        std = nanstd(grouped, 1).expand_as(grouped).reshape(-1)
        if scale == "batch":
            std = nanstd(rewards).expand_as(rewards)
        advantages = rewards - torch.nanmean(grouped, 1, keepdim=True).expand_as(grouped).reshape(-1)
        if scale != "none":
            advantages = advantages / (std + 1e-4)
    return torch.nan_to_num(advantages, nan=0.0), float(torch.isclose(std, torch.zeros_like(std)).double().mean())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("aggregation", "scale"), FORMS)
def test_the_numbers_are_trls(aggregation, scale, gaps, seed):
    groups, table = random_groups(seed, gaps=gaps)
    settings = {"scale_rewards": scale, "multi_objective_aggregation": aggregation, "reward_weights": WEIGHTS}
    numbers = _trl_batch(groups, TrainerSettings(values={**settings, "trl_version": "1.16.0"}))
    advantages, share = by_trl(table, aggregation, scale)
    np.testing.assert_allclose(numbers.advantages, advantages, rtol=1e-9, atol=1e-9)
    assert numbers.frac_zero_std == share
    rewards = (table * torch.tensor(WEIGHTS)).nansum(dim=1)[~table.isnan().all(dim=1)]
    assert numbers.reward == pytest.approx(float(rewards.mean()))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("aggregation", "scale"), FORMS)
@pytest.mark.parametrize(
    ("name", "stated"),
    [
        *(("scale_rewards", stated) for stated in ("batch", "none")),
        *(("multi_objective_aggregation", stated) for stated in ("sum_then_normalize", "normalize_then_sum")),
        *(("reward_weights", stated) for stated in ([1.0, 0.36], [2.0, 0.6], [0.1, 5.0])),
    ],
)
def test_arguments_that_make_the_logged_advantages_are_named(name, stated, aggregation, scale, gaps):
    groups, table = random_groups(3, gaps=gaps)
    true = {"scale_rewards": scale, "multi_objective_aggregation": aggregation, "reward_weights": WEIGHTS}
    advantages = iter(by_trl(table, aggregation, scale)[0].tolist())
    settings = {**true, name: stated, "trl_version": "1.16.0"}
    reward = float((table * torch.tensor(WEIGHTS)).nansum(dim=1)[~table.isnan().all(dim=1)].mean())
    rewards = function_rewards(groups, TrainerSettings()).summed(settings["reward_weights"])
    scalars = iter([None if np.isnan(value) else float(value) for value in rewards])
    of_step = [
        replace(
            group,
            rollouts=tuple(replace(row, advantage=next(advantages), reward=next(scalars)) for row in group.rollouts),
        )
        for group in groups
    ]
    run = run_of(*of_step, metrics={1: {"reward": reward}}, settings=settings)
    quantity, _, error = replayed(replay_advantages, replace(run, source=replace(run.source, format="trl")))
    assert (quantity.verdict == "match") == (error <= 1e-5)
    if quantity.verdict == "mismatch":
        assert f"; they are those of {name} = {true[name]}" in quantity.cause
        assert quantity.advice == "Give the arguments that the run had with --run-config."


@pytest.mark.parametrize("reward", [1e300, math.inf, -5.0])
def test_no_weights_are_named_that_no_advantages_have(reward: float) -> None:
    groups, _ = random_groups(3, gaps=False)
    draw = np.random.default_rng(0)
    of_step = [
        replace(group, rollouts=tuple(replace(rollout, advantage=float(draw.normal())) for rollout in group.rollouts))
        for group in groups
    ]
    run = run_of(
        *of_step, metrics={1: {"reward": reward}}, settings={"reward_weights": WEIGHTS, "trl_version": "1.16.0"}
    )
    quantity, *_ = replayed(replay_advantages, replace(run, source=replace(run.source, format="trl")))
    assert (quantity.verdict, "they are those" in str(quantity.cause)) == ("mismatch", False)


@pytest.mark.parametrize("normalized", [False, True])
def test_the_advantages_of_rloo_are_trls(normalized: bool) -> None:
    groups, table = random_groups(1, gaps=True)
    values = {"reward_clip_range": [0.5, 2.0], "normalize_advantages": normalized, "beta": 0.0, "trl_version": "1.16.0"}
    numbers = _trl_batch(groups, TrainerSettings(values=values))
    raw = (table * torch.tensor(WEIGHTS, dtype=torch.float64)).nansum(dim=1)
    raw[table.isnan().all(dim=1)] = torch.nan
    grouped = raw.clamp(0.5, 2.0).view(-1, G)
    num_others = (~grouped.isnan()).sum(1, keepdim=True) - 1
    advantages = (grouped - (grouped.nansum(1, keepdim=True) - grouped) / num_others).flatten()
    if normalized:
        advantages = (advantages - advantages.nanmean()) / (nanstd(advantages) + 1e-4)
    np.testing.assert_allclose(numbers.advantages, torch.nan_to_num(advantages, nan=0.0), rtol=1e-9, atol=1e-9)
    assert numbers.reward == pytest.approx(float(raw.nanmean()))
    assert _trl_batch(groups, TrainerSettings(values={**values, "beta": 0.1})).unknown.cause == "loss_not_on_disk"


def test_trl_needs_weights_of_its_functions_and_scored_rollouts_by_version():
    group = group_of([1.0, None], step=1)
    numbers = _trl_batch([group], TrainerSettings(values={"scale_rewards": "none", "trl_version": "1.5.0"}))
    assert numbers.advantages.tolist() == [0.5, -0.5]
    later = _trl_batch([group], TrainerSettings(values={"scale_rewards": "none", "trl_version": "1.6.0"}))
    assert later.advantages.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "values", "cause"),
    [
        ([1.0, 0.0], {"scale_rewards": "odd"}, "loss_unknown"),
        ([1.0, 0.0], {"multi_objective_aggregation": "odd"}, "loss_unknown"),
        ([1.0, None], {}, "settings_unknown"),
        ([1.0, 0.0], {"multi_objective_aggregation": "normalize_then_sum"}, "rewards_missing"),
    ],
)
def test_unknown_arithmetic_has_its_reason(rewards, values, cause):
    result = _trl_batch([group_of(rewards, step=1)], TrainerSettings(values=values))
    assert isinstance(result, Reason)
    assert result.cause == cause


def test_weights_of_other_functions_are_no_weights():
    groups, _ = random_groups(0, gaps=False)
    values = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0]}
    assert _trl_batch(groups, TrainerSettings(values=values)).cause == "rewards_missing"
    unnamed = [with_fields(group, rewards={}) for group in groups]
    assert _trl_batch(unnamed, TrainerSettings(values={**values, "reward_weights": None})).cause == "rewards_missing"


def group(*rewards: float) -> RolloutGroup:
    return group_of(rewards, step=1)


def batch(trainer: str, *groups: RolloutGroup, **values: Any):
    named = {name.replace("__", "."): value for name, value in values.items()}
    return _trainer_batch(groups, TrainerSettings(values={**named, "trainer": trainer}))


def test_formulas_of_other_trainers_by_hand() -> None:
    made = batch("verl", group(1.0, 0.0), group(3.0), algorithm__adv_estimator="grpo")
    assert made.advantages == pytest.approx([0.5 / (np.sqrt(0.5) + 1e-6), -0.5 / (np.sqrt(0.5) + 1e-6), 3.0], rel=1e-5)
    unscaled = {"algorithm__adv_estimator": "grpo", "algorithm__norm_adv_by_std_in_grpo": False}
    assert batch("verl", group(1.0, 0.0), **unscaled).advantages.tolist() == [0.5, -0.5]
    assert (made.reward, made.frac_zero_std) == (pytest.approx(4 / 3), pytest.approx(1 / 3))
    assert batch("prime-rl", group(1.0, 0.0, 0.0, 0.0)).advantages.tolist() == [0.75, -0.25, -0.25, -0.25]
    left_out = batch("nemo-rl", group(1.0, 0.0, 1.0)).advantages
    spread = np.std([0.0, 1.0], ddof=1) + 1e-6
    assert left_out == pytest.approx([0.5 / spread, -1.0, 0.5 / spread])
    full = {"grpo__use_leave_one_out_baseline": False, "grpo__normalize_rewards": False}
    assert batch("nemo-rl", group(1.0, 0.0), **full).advantages.tolist() == [0.5, -0.5]
    assert batch("nemo-rl", group(1.0)).advantages.tolist() == [0.0]


@pytest.mark.parametrize(
    ("trainer", "values"),
    [
        ("verl", {"algorithm__adv_estimator": "gae"}),
        ("verl", {"algorithm__use_kl_in_reward": True}),
        ("prime-rl", {"orchestrator__algo__length_penalty": 1.0}),
        ("nemo-rl", {"grpo__adv_estimator__name": "gdpo"}),
        ("nemo-rl", {"grpo__reward_shaping__enabled": True}),
    ],
)
def test_formulas_without_a_rule_are_unknown_and_rewards_stay(trainer: str, values: dict[str, Any]) -> None:
    made = batch(trainer, group(1.0, 0.0), **values)
    assert made.unknown is not None
    assert made.reward == 0.5
    settings = {"trainer": trainer} | {name.replace("__", "."): value for name, value in values.items()}
    run = run_of(group_of([1.0, 0.0], step=1, advantages=[0.5, -0.5]), settings=settings)
    assert replayed(replay_advantages, run)[0].verdict == "cannot"


def test_an_estimator_that_no_argument_names_is_not_said_to_be_one() -> None:
    unknown = batch("verl", group(1.0, 0.0)).unknown
    assert unknown.cause == "settings_unknown"
    assert "do not name algorithm.adv_estimator" in unknown.text


def test_a_rollout_without_a_token_in_the_loss_needs_no_advantage() -> None:
    half = 0.5 / (0.5**0.5 + 1e-4)
    for advantages, masks, verdict in (
        ([half, None], [(True,), (False,)], "match"),
        ([half + 0.1, None], [(True,), (False,)], "cannot"),
        ([half, None], [(True,), (True,)], "cannot"),
        ([None, None], [(False,), (False,)], "cannot"),
    ):
        group = with_fields(group_of([1.0, 0.0], step=1), advantage=advantages, mask=masks)
        assert replayed(replay_advantages, run_of(group))[0].verdict == verdict


def test_a_step_without_rollouts_keeps_the_reason_that_it_has() -> None:
    empty = replace(run_of(GROUP_0), notes={1: NOTE})
    assert replayed(replay_advantages, empty)[0].reason == NOTE.cause


@pytest.mark.parametrize(
    ("advantages", "verdict", "words"),
    [
        ([0.707, -0.707], "match", "the log has advantages to 0.001, as they were rounded"),
        ([0.71, -0.71], "cannot", "the log has advantages to 0.01, as they were rounded"),
        ([0.708, -0.708], "mismatch", "differs from grpo of its group by 0.001"),
        ([0.7075001, -0.7075001], "mismatch", "differs from grpo"),
    ],
)
def test_advantages_that_were_rounded_for_the_log_are_met_to_their_digits(
    advantages: list, verdict: str, words: str
) -> None:
    run = run_of(group_of([1.0, 0.3], step=1, advantages=advantages), settings={"scale_rewards": "group"})
    quantity, _, _ = replayed(replay_advantages, run)
    assert quantity.verdict == verdict
    assert words in quantity.cause


def measured(run: Run, step: int = 1) -> MeasuredStep:
    reason = Reason("not_recomputed", "not computed")
    return MeasuredStep(step=step, groups=run.groups_at(step), weights=None, gram=None, reason=reason)


def replayed(replay: Callable[..., Outcome], run: Run) -> Outcome:
    step = measured(run)
    return replay(run, step, batch_of_step(run, step))


def one_step(settings: Mapping[str, object] | None = None, **logged: float) -> Run:
    mixed = group_of([1.0, 0.0], step=1, prompt="a", advantages=[0.5, -0.5])
    dead = group_of([1.0, 1.0], step=1, prompt="b", advantages=[0.0, 0.0])
    return run_of(mixed, dead, metrics={1: logged}, settings=settings)


NOTE = Reason("batch_split", "a note")
BARE = run_of(group_of([1.0, 0.0], step=1, prompt="a"))
GROUP_0 = group_of([1.0, 0.0], step=0, prompt="a")


@pytest.mark.parametrize(
    ("logged", "verdict", "error", "cause"),
    [
        (0.75, "match", 0.0, None),
        (0.5, "mismatch", 0.5, "the log says 0.5, its rollouts say 0.75"),
        (0.8, "cannot", 0.0625, "the log has 0.8 to 0.1, as it was rounded"),
        (math.nan, "mismatch", None, "the log says NaN, its rollouts say 0.75"),
        (math.inf, "mismatch", None, "the log says Infinity, its rollouts say 0.75"),
    ],
)
def test_the_mean_reward_is_held_against_the_log(logged: float, verdict: str, error: float | None, cause: str) -> None:
    quantity, *numbers = replayed(replay_rewards, one_step(reward=logged))
    assert (quantity.verdict, *numbers) == (verdict, 0.75, pytest.approx(error))
    assert quantity.cause == cause


def test_the_degenerate_share_is_held_against_the_log() -> None:
    for settings, logged, verdict, value in (
        (None, 0.5, "match", 0.5),
        (None, 0.0, "mismatch", 0.5),  # compared absolutely
        ({"scale_rewards": "batch"}, 0.0, "match", 0.0),  # all or nothing
    ):
        quantity, *numbers = replayed(replay_zero_std, one_step(settings, frac_reward_zero_std=logged))
        assert (quantity.verdict, *numbers) == (verdict, value, value - logged)


def test_what_an_argument_of_trl_may_explain_is_no_mismatch_where_none_are_known() -> None:
    two = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0}]
    group = group_of([1.0, 0.0], step=1, prompt="a")
    functions = with_fields(group, rewards=two)
    for replay, groups, logged, verdict in (
        (replay_zero_std, one_step().groups, {"frac_reward_zero_std": 0.0}, "cannot"),
        (replay_zero_std, one_step().groups, {"frac_reward_zero_std": 0.25}, "mismatch"),
        (replay_rewards, [functions], {"reward": -2.0}, "cannot"),
        (replay_rewards, [group], {"reward": -2.0}, "mismatch"),
    ):
        for settings, expected in ((None, verdict), ({"loss_type": "grpo"}, "mismatch")):
            run = run_of(*groups, metrics={1: logged}, settings=settings)
            run = replace(run, source=replace(run.source, format="trl"))
            assert replayed(replay, run)[0].verdict == expected


def test_advantages_of_the_stated_formulation_match() -> None:
    mixed, dead = ([1.0, 0.0], [0.5, -0.5]), ([1.0, 1.0], [0.0, 0.0])
    half = 0.5 / 0.5001  # of a batch of rewards 1 0 1 1, whose std (ddof 1) is 0.5
    for settings, groups in (
        ({"scale_rewards": "none"}, [mixed, dead]),
        ({"advantage": "sign", "scale_rewards": "none"}, [([1.0, 0.0], [1.0, -1.0])]),
        ({"scale_rewards": "batch"}, [([1.0, 0.0], [half, -half]), dead]),
        ({"advantage": "batch_mean"}, [([1.0, 0.0, 1.0], [0.25, -0.75, 0.25]), ([1.0], [0.25])]),
    ):
        of_step = [group_of(row, step=1, prompt=f"p{n}", advantages=logged) for n, (row, logged) in enumerate(groups)]
        quantity, _, error = replayed(replay_advantages, run_of(*of_step, settings=settings))
        assert (quantity.verdict, error) == ("match", pytest.approx(0.0, abs=1e-9)), settings
    # advantages of an infinite reward are blamed on it
    for logged, reason in ((math.inf, "not_finite"), (0.75, "log_differs")):
        quantity, *_ = replayed(replay_advantages, one_step({"scale_rewards": "group"}, reward=logged))
        assert (quantity.verdict, quantity.reason) == ("mismatch", reason)
        assert quantity.cause.startswith("an advantage differs from grpo of its group by 0.21")


def test_dead_groups_of_unequal_size_count_by_rollout_in_trl_and_by_rollout_or_group_elsewhere() -> None:
    """A healthy script whose groups are ragged was a mismatch at 77 of 80 steps."""
    groups = group_of([1.0, 0.0, 0.0], step=1, prompt="a"), group_of([1.0], step=1, prompt="b")
    for settings, reader, logged, verdict in (
        ({}, "generic", 0.25, "match"),
        ({}, "generic", 0.5, "match"),
        ({}, "generic", 0.75, "mismatch"),
        ({"sampling": "dynamic"}, "gradscope", 0.25, "match"),
        ({"sampling": "reallocated"}, "gradscope", 0.5, "match"),
        ({}, "trl", 0.5, "mismatch"),
    ):
        run = run_of(*groups, metrics={1: {"frac_reward_zero_std": logged}}, settings=settings)
        run = replace(run, source=replace(run.source, format=reader))
        assert replayed(replay_zero_std, run)[0].verdict == verdict


def test_opo_takes_lengths_from_the_log() -> None:
    group = group_of([1.0, 0.0], step=1, prompt="a", advantages=[0.75, -0.25])
    run = run_of(with_fields(group, completion_ids=[(7,), (7,) * 3]), settings={"advantage": "opo"})
    assert replayed(replay_advantages, run)[0].verdict == "match"
    quantity, *_ = replayed(replay_advantages, run_of(group, settings={"advantage": "opo"}))
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
    assert replayed(replay_advantages, run)[0].verdict == "match"
    bare = run_of(group_of([1.0, 0.0], step=1, prompt="a", advantages=[1.0, -1.0]), settings={"advantage": "gdpo"})
    quantity, *_ = replayed(replay_advantages, bare)
    assert (quantity.verdict, quantity.reason) == ("cannot", "rewards_missing")


def test_code_is_not_run_because_a_log_names_it(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text(
        "from gradscope import advantage_formulation\n@advantage_formulation()\ndef own(r):\n    return 2 * r - 1\n"
    )
    name, group = f"{file}:own", group_of([1.0, 0.0], step=1, prompt="a", advantages=[1.0, -1.0])
    run = run_of(group, settings={"advantage": name, "advantage_digest": "0" * 64})
    assert replayed(replay_advantages, run)[0].reason == "code_not_named"
    named_formulation(name)
    assert replayed(replay_advantages, run)[0].reason == "code_changed"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    same = run_of(group, settings={"advantage": name, "advantage_digest": digest})
    assert replayed(replay_advantages, same)[0].verdict == "match"


def test_other_advantages_are_a_mismatch_where_the_settings_are_stated() -> None:
    quantity, _, error = replayed(replay_advantages, one_step(settings={"scale_rewards": "group"}))
    assert quantity.verdict == "mismatch"
    assert "differs from grpo of its group by 0.21" in str(quantity.cause)
    assert error == pytest.approx(0.5 / (0.5**0.5 + 1e-4) - 0.5)
    quantity, _, _ = replayed(replay_advantages, one_step())
    assert (quantity.verdict, quantity.reason) == ("cannot", "settings_unknown")


@pytest.mark.parametrize(
    ("advantages", "verdict", "words"),
    [
        ([0.5, -0.5, 0.0, 0.0], "match", "scale_rewards = none"),
        ([0.5 / (1 / 3 + 1e-8) ** 0.5, -0.5 / (1 / 3 + 1e-8) ** 0.5, 0.0, 0.0], "cannot", "default is 0.16 off"),
        ([-0.5, 0.5, 0.0, 0.0], "mismatch", "advantages fall where rewards rise"),
        ([0.25, 1.0, 0.5, 0.5], "mismatch", "advantages fall where rewards rise"),
        ([0.1, 0.2, 0.9, -0.9], "cannot", "default is"),
    ],
)
def test_a_scripts_advantages_may_be_of_another_scale_but_not_of_the_other_sign(
    advantages: list[float], verdict: str, words: str
) -> None:
    parts = zip("ab", ([1.0, 0.0], [1.0, 1.0]), (advantages[:2], advantages[2:]), strict=True)
    groups = [group_of(rewards, step=1, prompt=name, advantages=advantages) for name, rewards, advantages in parts]
    quantity, *_ = replayed(replay_advantages, run_of(*groups, settings={"loss_type": "grpo"}))
    assert (quantity.verdict, words in str(quantity.cause)) == (verdict, True)


@pytest.mark.parametrize(
    ("run", "replay", "cause"),
    [
        (run_of(group_of([1.0, None], step=1, prompt="a"), metrics={1: {"reward": 1.0}}), replay_rewards, "no reward"),
        (run_of(group_of([1.0, None], step=1, prompt="a")), replay_zero_std, "no reward"),
        (run_of(group_of([1.0, None], step=1, prompt="a", advantages=[0.0, 0.0])), replay_advantages, "no reward"),
        (replace(BARE, metrics={1: {"loss": 0.1}}), replay_rewards, "logged no mean reward"),
        (BARE, replay_rewards, "its mean reward is not known"),
        (BARE, replay_zero_std, "its frac_reward_zero_std is not known"),
        (BARE, replay_advantages, "no advantages were logged"),
        (run_of(group_of([1, 0], step=1, advantages=[0.5, None])), replay_advantages, "1 of 2 rollouts have no adv"),
        (replace(BARE, notes={1: NOTE}), replay_rewards, "a note"),
        (replace(BARE, notes={1: NOTE}), replay_zero_std, "a note"),
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
    quantity, value, error = replayed(replay, run)
    assert quantity.verdict == "cannot"
    assert cause in str(quantity.cause)
    assert (value, error) == (None, None)


def test_rollouts_that_nothing_scored_are_trls_to_judge() -> None:
    """Three known rewards with mean 2/3; the fourth has no part in its group."""
    group = group_of([1.0, None, 0.0, 1.0], step=1, prompt="a")
    run = run_of(group, metrics={1: {"reward": 2 / 3}}, settings={"trl_version": "1.16.0"})
    assert replayed(replay_rewards, run)[0].reason == "rewards_missing"
    of_trl = replace(run, source=replace(run.source, format="trl"))
    assert replayed(replay_rewards, of_trl)[0].verdict == "match"
    ours = replace(of_trl, settings=TrainerSettings(values={"advantage": "rloo"}))
    assert replayed(replay_rewards, ours)[0].reason == "rewards_missing"


def rounded_run(noise: float, logged_share: float, *, live: bool = True) -> Run:
    """Eight rewards of 0.41666, whose float32 mean is 3e-8 off, and a live group."""
    equal = group_of([0.41666] * 8, step=1, prompt="a", advantages=[-noise] * 8)
    other = group_of([1.0, 0.0] * 4, step=1, prompt="b", advantages=[0.935239, -0.935239] * 4)
    groups = (equal, other) if live else (equal,)
    run = run_of(*groups, metrics={1: {"frac_reward_zero_std": logged_share}}, settings={"trl_version": "1.16.0"})
    return replace(run, source=replace(run.source, format="trl"))


def test_equal_rewards_that_float32_keeps_apart_are_no_mismatch() -> None:
    run = rounded_run(2.98e-4, 0.0)
    share, value, error = replayed(replay_zero_std, run)
    assert (share.verdict, value, error) == ("match", 0.5, 0.5)
    assert "0.5 of the rollouts are in groups of equal rewards, and the trainer counted 0: TRL's float32" in share.cause
    quantity, _, largest = replayed(replay_advantages, run)
    assert quantity.verdict == "match"
    assert largest < 1e-5
    assert "8 rollouts of equal rewards have advantages of up to 0.0003 where 0 is exact" in quantity.cause
    assert "noise: 0.00032 of what the largest advantage makes" in quantity.cause
    dead = rounded_run(2.98e-4, 0.0, live=False)
    assert "noise: the whole step" in replayed(replay_advantages, dead)[0].cause


@pytest.mark.parametrize(("noise", "share"), [(2.98e-4, 0.25), (0.5, 0.0)])
def test_what_rounding_does_not_explain_is_a_mismatch(noise: float, share: float) -> None:
    run = rounded_run(noise, share)
    verdicts = (replayed(replay_zero_std, run)[0].verdict, replayed(replay_advantages, run)[0].verdict)
    assert "mismatch" in verdicts


def test_functions_that_share_a_name_leave_rewards_unknown() -> None:
    group = group_of([None, None], step=1, functions={"reward": [1.0, 0.0]}, advantages=[0.5, -0.5])
    run = run_of(group, metrics={1: {"reward": 1.0, "frac_reward_zero_std": 0.0}}, settings={"trl_version": "1.16.0"})
    run = replace(run, source=replace(run.source, format="trl"))
    for replay in (replay_rewards, replay_zero_std, replay_advantages):
        quantity, _, _ = replayed(replay, run)
        assert (quantity.verdict, quantity.reason) == ("cannot", "rewards_missing")
        assert quantity.advice == "Give each function a __name__ of its own in the next run."
