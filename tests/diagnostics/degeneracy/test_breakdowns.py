from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from scipy.stats import binomtest

from gradscope.advantages.registry import FORMULATIONS
from gradscope.diagnostics.degeneracy.breakdowns import environments_of
from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run, measure_degeneracy
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of, two_steps, with_fields, with_rewards, with_tokens
from tests.rollouts.readers.lines import write_lines

RUN = run_of(
    group_of([0, 0], prompt="never", step=1),
    group_of([1, 1], prompt="always", step=1),
    group_of([1, 0], prompt="live", step=1),
    group_of([0, 0], prompt="never", step=2),
    group_of([0, 0], prompt="never", step=3),
    group_of([0, 1], prompt="live", step=2),
    group_of([1, 1], prompt="live", step=3),
    group_of([0, 0], prompt="turned", step=2),
    group_of([1, 1], prompt="turned", step=3),
)


def test_each_prompt_is_a_row_and_those_that_cost_most_come_first() -> None:
    report = degeneracy_of_run(RUN)
    rows = {row["prompt_id"]: row for row in report.by_prompt}
    assert [row["prompt_id"] for row in report.by_prompt] == ["never", "always", "live", "turned"]
    assert rows["never"] == {
        "prompt_id": "never",
        "prompt": "never",
        "num_groups": 3,
        "num_rollouts": 6,
        "pass_rate": 0.0,
        "status": "never",
        "first_step": 1,
        "last_live_step": None,
    }
    assert (rows["always"]["status"], rows["always"]["pass_rate"]) == ("always", 1.0)
    assert (rows["live"]["status"], rows["live"]["last_live_step"]) == ("live", 2)
    assert rows["live"]["pass_rate"] == pytest.approx(4 / 6)
    assert (rows["turned"]["status"], rows["turned"]["last_live_step"]) == ("live", None)
    counts = report.prompts
    assert (counts.never, counts.always, counts.live, counts.reward) == (1, 1, 2, "reward")
    assert counts.frac_rollouts == pytest.approx(8 / 18)


def test_solved_prompts_are_those_of_the_main_reward_where_passing_is_known() -> None:
    report = degeneracy_of_run(run_of(group_of([0.5, 0.5], prompt="a"), group_of([0.5, 0.7], prompt="b")))
    rows = {row["prompt_id"]: (row["status"], row["pass_rate"]) for row in report.by_prompt}
    assert rows == {"a": (None, None), "b": ("live", None)}
    assert (report.prompts.never, report.prompts.always, report.prompts.live) == (None, None, 1)
    run = run_of(group_of([0.1, 0.2], prompt="a"), group_of([1.1, 0.2], prompt="b"))
    run = with_rewards(run, correct=[[0, 0], [1, 0]], short=[[0.1, 0.2], [0.1, 0.2]])
    report = degeneracy_of_run(run)
    assert report.prompts.reward == "correct"
    assert {row["prompt_id"]: row["status"] for row in report.by_prompt} == {"a": "never", "b": "live"}


REWARDS = {"openai/gsm8k": (1.0, 0.0), "code": (0.0, 0.0)}  # two prompts of the one differ, two of the other are dead


def rows(*names: str, **fields: Any) -> list[dict[str, Any]]:
    """A row a rollout: step, prompt, reward and environment, under these names."""
    return [
        {**dict(zip(names, (1, f"{environment}?{index}", reward, environment), strict=True)), **fields}
        for environment, rewards in REWARDS.items()
        for index in range(2)
        for reward in rewards
    ]


def generic(folder: Path) -> Path:
    return write_lines(folder / "log.jsonl", *rows("step", "prompt", "reward", "env"))


def verl(folder: Path) -> Path:
    return write_lines(folder / "1.jsonl", *rows("step", "input", "score", "data_source", output="", gts=""))


def nemo_rl(folder: Path) -> Path:
    log = [
        {"content": [[row["prompt"], "answer"]], "rewards": [row["reward"]], "agent_ref": {"name": row["agent"]}}
        for row in rows("step", "prompt", "reward", "agent")
    ]
    return write_lines(folder / "train_data_step1.jsonl", *log)


def prime_rl(folder: Path) -> Path:
    log = [
        {
            "id": str(index),
            "env": {"id": row["env"]},
            "group": {"id": row["prompt"]},
            "task": {"hash": str(index // 2)},
            "run": {"type": "train", "work": {"type": "train", "step": 1}},
            "ok": True,
            "traces": [{"agent": {"trainable": True}, "nodes": [], "rewards": {"r": {"score": row["reward"]}}}],
        }
        for index, row in enumerate(rows("step", "prompt", "reward", "env"))
    ]
    path = folder / "step_1" / "train" / "all" / "traces.jsonl"
    path.parent.mkdir(parents=True)
    return write_lines(path, *log)


@pytest.mark.parametrize("make", [generic, verl, nemo_rl, prime_rl])
def test_each_environment_that_rows_name_is_judged_alone(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    for report in (measure_degeneracy(path), degeneracy_of_run(read_run(path))):
        assert [
            (row.environment, row.num_groups, row.num_rollouts, row.frac_reward_zero_std.value, row.pass_rate.value)
            for row in report.by_environment
        ] == [("code", 2, 4, 1.0, 0.0), ("openai/gsm8k", 2, 4, 0.0, 0.5)]


@pytest.mark.parametrize(
    "prompts",
    [[], ["a", "b"], ["a/1", "a/2"], ["a/1", "b/1"], ["1/a", "1/b", "2/a", "2/b"], ["a/1", "a/2", "b", "c/1"]],
)
def test_ids_that_name_no_environments_have_none(prompts: list[str]) -> None:
    assert environments_of(prompts) == []


def test_an_environment_without_a_group_to_judge_is_left_out(tmp_path: Path) -> None:
    single = {"step": 1, "prompt": "x", "reward": 1.0, "env": "math"}
    log = [*rows("step", "prompt", "reward", "env"), single, {**single, "prompt": "y"}]
    report = measure_degeneracy(write_lines(tmp_path / "log.jsonl", *log))
    assert [row.environment for row in report.by_environment] == ["code", "openai/gsm8k"]
    graded = [group_of([0.3, tenths / 10], prompt=f"{env}/{tenths}") for env in "ab" for tenths in (3, 4)]
    rows_of_graded = degeneracy_of_run(run_of(*graded)).by_environment
    assert [row.frac_reward_zero_std.value for row in rows_of_graded] == [0.5, 0.5]
    assert {row.pass_rate.undefined for row in rows_of_graded} == {NO_THRESHOLD}


def test_pooled_environments_that_pass_unlike_are_named() -> None:
    unlike = [group_of([1.0, float(env == "a")] * 4, prompt=f"{env}/{number}") for env in "ab" for number in range(30)]
    equal = [group_of([1.0, 0.0] * 4, prompt=f"{env}/{number}") for env in "ab" for number in range(30)]
    graded = [group_of([0.3, number / 10], prompt=f"{env}/{number}") for env in "ab" for number in (3, 4)]
    words = [" ".join(degeneracy_of_run(run_of(*groups)).findings) for groups in (unlike, equal, graded)]
    assert ["The log pools 2 environments, which pass from 50" in text for text in words] == [True, False, False]


def sampled_by(group: RolloutGroup, *policies: str) -> RolloutGroup:
    return with_fields(group, policy=policies[0] if len(policies) == 1 else list(policies))


def test_policies_of_unequal_strength_make_a_gap_of_their_own() -> None:
    groups = [sampled_by(group_of([1, 1], prompt=f"p{i}"), "strong") for i in range(6)]
    groups += [sampled_by(group_of([0, 0], prompt=f"q{i}"), "weak") for i in range(6)]
    report = degeneracy_of_run(run_of(*groups))
    assert report.jensen_gap.value == pytest.approx(0.5)
    assert report.policy_gap.between_policies.value == pytest.approx(0.5)
    assert report.policy_gap.between_prompts.value == pytest.approx(0.0)
    rows = [(row.policy, row.num_groups, row.pass_rate.value) for row in report.by_policy]
    assert rows == [("strong", 6, 1.0), ("weak", 6, 0.0)]
    # policies with graded rewards have shares alone
    graded = [sampled_by(group_of([0.5, 0.2], prompt=name), name) for name in ("strong", "weak")]
    report = degeneracy_of_run(run_of(*graded))
    assert report.policy_gap is None
    assert {row.pass_rate.undefined for row in report.by_policy} == {NO_THRESHOLD}
    # the gap is that of groups whose policies are known
    named = [sampled_by(group_of([1.0, name == "a"], prompt=name), name) for name in "ab"]
    unnamed = group_of([0.0, 0.0], prompt="c")
    gaps = [degeneracy_of_run(run_of(*groups)).policy_gap for groups in (named, [*named, unnamed])]
    assert gaps[0].between_policies.value == gaps[1].between_policies.value


def test_unequal_coins_in_one_group_agree_less_often() -> None:
    groups = [sampled_by(group_of([1, i % 4 == 0], prompt=f"p{i}"), "strong", "weak") for i in range(8)]
    report = degeneracy_of_run(run_of(*groups))
    # p is 1 and 1/4: agreement 1/4, the pooled 5/8 predicts (25 + 9) / 64.
    assert report.policy_gap.between_prompts.value == pytest.approx(0.0)
    assert report.policy_gap.between_policies.value == pytest.approx(1 / 4 - 34 / 64)
    assert report.by_policy[0].frac_reward_zero_std.undefined == "no group is of this policy alone"


def test_gsm8k_models_and_their_gap(shared_data: Path) -> None:
    options = DegeneracyOptions(resampling=Resampling(num_resamples=50))
    report = measure_degeneracy(shared_data / "gsm8k" / "example_model_solutions.jsonl", options=options)
    rates = [row.pass_rate.value for row in report.by_policy]
    assert rates == pytest.approx([0.2168, 0.3904, 0.3472, 0.5625], abs=5e-5)
    assert report.frac_reward_zero_std.value == pytest.approx(0.44579, abs=5e-6)
    assert report.iid_prediction.value == pytest.approx(0.16916, abs=5e-6)
    parts = report.policy_gap.between_prompts.value + report.policy_gap.between_policies.value
    assert parts == pytest.approx(report.jensen_gap.value, abs=1e-12)
    assert report.policy_gap.between_policies.value < 0


def test_cost_of_a_hand_worked_run() -> None:
    cost = degeneracy_of_run(with_tokens(two_steps())).starvation
    assert cost.frac_rollouts.value == 0.75
    # Dead: 12 + 4 + 4 tokens; alive: 3 + 1 + 1 + 3.
    assert cost.frac_tokens.value == pytest.approx(20 / 28)
    assert cost.tokens_per_rollout.value == pytest.approx(28 / 16)
    assert (cost.batch_size.value, cost.effective_batch_size.value) == (8.0, 2.0)
    assert cost.dilution.value == 0.25
    assert cost.resampling_factor.value == pytest.approx(4.0)
    reason = degeneracy_of_run(two_steps()).starvation.frac_tokens.undefined
    assert reason == "token ids of the completions were not logged"
    lifeless = degeneracy_of_run(run_of(group_of([0, 0], prompt="a"), group_of([0, 0], prompt="b")))
    assert "no group is alive" in lifeless.starvation.resampling_factor.undefined
    assert (lifeless.by_policy, lifeless.policy_gap) == ((), None)


@pytest.mark.parametrize("num_dead", [0, 1, 2, 59, 60])
def test_the_cost_of_rare_dead_prompts_is_as_uncertain_as_their_share(num_dead: int) -> None:
    groups = [group_of([0, 0] if number < num_dead else [0, 1], prompt=f"p{number}") for number in range(60)]
    report = degeneracy_of_run(run_of(*groups))
    ends = tuple(binomtest(num_dead, 60).proportion_ci(method="wilson"))
    assert report.starvation.frac_rollouts.interval == pytest.approx(ends)
    assert report.starvation.dilution.interval == pytest.approx((1 - ends[1], 1 - ends[0]))
    zeros = next(mass.frac_zero for mass in report.advantages if mass.advantage == "grpo")
    assert zeros.interval == report.frac_reward_zero_std.interval == pytest.approx(ends)


def test_generation_time_of_dead_groups_where_rollouts_are_timed(tmp_path: Path) -> None:
    path = tmp_path / "timed.jsonl"
    rows = [
        {"group_id": group, "reward": reward, "generation_seconds": seconds}
        for group, reward, seconds in (("a", 1, 2.0), ("a", 1, 4.0), ("b", 1, 1.0), ("b", 0, 1.0))
    ]
    report = measure_degeneracy(write_lines(path, *rows))
    assert report.starvation.frac_generation_time.value == pytest.approx(6 / 8)
    write_lines(path, *rows[:3], {"group_id": "b", "reward": 0})
    unknown = measure_degeneracy(path).starvation.frac_generation_time
    assert unknown.undefined == "no generation time of each rollout was read from the log"


def test_every_formulation_is_weighed() -> None:
    masses = {mass.advantage: mass for mass in degeneracy_of_run(two_steps()).advantages}
    assert set(masses) == set(FORMULATIONS)
    sign, dr_grpo, reinforce = masses["sign"], masses["dr_grpo"], masses["reinforce"]
    assert (sign.positive_mass.value, sign.negative_mass.value, sign.frac_zero.value) == (6 / 16, 10 / 16, 0.0)
    assert (dr_grpo.positive_mass.value, dr_grpo.frac_zero.value) == (1 / 16, 0.75)
    assert reinforce.frac_zero.value == 10 / 16


def test_a_run_with_a_constant_is_weighed_under_it() -> None:
    settings = TrainerSettings(values={"advantage": "sign:c=0.5"})
    masses = degeneracy_of_run(replace(two_steps(), settings=settings)).advantages
    trained, sign = masses[-1], next(mass for mass in masses if mass.advantage == "sign")
    assert trained.advantage == "sign:c=0.5"
    assert trained.positive_mass.value == sign.positive_mass.value
    assert trained.negative_mass.value == sign.negative_mass.value - 0.5 * 8 / 16  # two groups of four fail
    graded = run_of(group_of([0.5, 0.2], prompt="a"), group_of([0.1, 0.1], prompt="b"))
    masses = {mass.advantage: mass for mass in degeneracy_of_run(graded).advantages}
    assert "it is defined for rewards of 0 and 1" in masses["sign"].positive_mass.undefined
    assert masses["dr_grpo"].positive_mass.value == pytest.approx(0.15 / 4)
