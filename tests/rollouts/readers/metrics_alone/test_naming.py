import math
from collections.abc import Iterable

import pytest

from gradscope.errors import UsageError
from gradscope.rollouts.readers.metrics_alone.naming import (
    COMMON,
    naming_of,
    parse_metric_columns,
    without_impossible_shares,
)
from gradscope.rollouts.run import StepMetrics
from tests.rollouts.readers.lines import refused

DEAD = "frac_reward_zero_std"


def applied(keys: Iterable[str], numbers: dict[str, float], named: dict[str, str] | None = None) -> dict[str, float]:
    metrics = StepMetrics.from_mapping({1: numbers})
    return dict(naming_of(keys, named or {}).checked_against(metrics)[0].apply(metrics)[1])


@pytest.mark.parametrize(
    ("numbers", "name", "value"),
    [
        ({"train/frac_reward_zero_std": 0.5}, DEAD, 0.5),
        ({"env/all/by_group/frac_mixed": 0.25}, DEAD, 0.75),
        ({"groups_skipped": 0.0, "groups_total": 0.0}, DEAD, math.nan),
        ({"batch/filtered_prompts": 8.0, "batch/total_prompts": 24.0}, DEAD, 0.25),
        ({"batch/solve_none": 0.5, "batch/solve_all": 0.25}, DEAD, 0.75),
        ({"batch/solve_none": 0.5, "batch/solve_all": 0.25}, "frac_all_fail", 0.5),
        ({"train/baseline_reward/pct_mixed": 25.0}, DEAD, None),  # of rollouts, each left out
        ({"train/agg/all/agent/solved_none": 0.5, "train/agg/all/agent/solved_all": 0.25}, DEAD, 0.75),
        ({"train/agg/effective/agent/reward/mean": 0.5, "train/agg/all/agent/reward/mean": 0.25}, "reward", 0.5),
        ({"train/agg/effective/a/reward/mean": 0.5, "train/agg/effective/b/reward/mean": 0.25}, "reward", None),
        ({"env/reward": 0.5, "rollout/rewards": 0.25}, "reward", 0.25),
        ({"val/stop_rate": 0.75}, "completions/clipped_ratio", 0.25),
        ({"batch/solve_none": 8.0, "batch/solve_all": 2.0, "batch/solve_partial": 30.0}, DEAD, 0.25),
        ({"batch/solve_none": 0.5, "batch/solve_all": 0.25, "batch/solve_partial": 0.25}, "frac_all_fail", 0.5),
        ({"train/num_groups_trainable": 6.0, "train/num_groups_submitted": 8.0}, DEAD, 0.25),
        ({"critic/rewards/mean": 2.0, "critic/score/mean": 1.0}, "reward", 1.0),
        ({"critic_rewards_mean": 2.0, "critic_score_mean": 1.0}, "reward", 1.0),  # as columns of a table are spelled
        ({"response_length_clip_ratio": 0.25}, "completions/clipped_ratio", 0.25),
        ({"batch.solve_none": 0.5, "batch.solve_all": 0.25}, DEAD, 0.75),
        ({"reward/mean": 2.0, "reward": 1.0}, "reward", 1.0),
        ({"rewards/train/mean": 0.25, "rewards/train/score/mean": 1.0}, "reward", 1.0),
        ({"response/rewards/mean": 0.5, "response/rewards/max": 1.0}, "reward", 0.5),  # of XTuner
        ({"train/reward": 3.0, "avg_reward": 1.0}, "reward", 1.0),
        ({"train/reward": 3.0, "train/reward_std": 0.5, "train/avg_reward": 1.0}, "reward", 3.0),
        ({"eval_reward": 3.0}, "reward", None),
        ({"Mean Reward": 3.0}, "reward", 3.0),
        ({"Train / Groups_Skipped": 3.0, "Train / Groups_Total": 4.0}, DEAD, 0.75),
        ({"rollout/degenerate_group_rate": 0.25}, DEAD, 0.25),
        ({"group/zero_variance_fraction": 0.25, "group/count": 8.0}, DEAD, 0.25),
        ({"zero_gradient_group_fraction": 0.25}, DEAD, 0.25),
        ({"n_zero_advantage_groups": 2.0, "n_groups": 8.0}, DEAD, 0.25),
        ({"zero_std_groups": 2.0, "n_groups": 8.0, "num_prompts": 9.0}, DEAD, 0.25),
        ({"n_degenerate": 2.0, "n_groups": 8.0}, DEAD, 0.25),
        ({"train/num_zero_variance": 2.0, "train/num_prompts": 8.0}, DEAD, 0.25),
        ({"zero_std_count": 2.0, "groups": 8.0}, DEAD, 0.25),
        ({"n_degenerate": 2.0, "n_groups": 8.0, "n_prompts": 16.0}, DEAD, None),
        ({"n_degenerate": 2.0, "n_samples": 8.0}, DEAD, None),
        ({"degenerate": 0.5, "n_groups": 8.0}, DEAD, None),
        ({"n_degenerate_layers": 2.0, "n_groups": 8.0}, DEAD, None),
        ({"eval/n_degenerate": 2.0, "n_groups": 8.0}, DEAD, None),
        ({"frac_groups_mixed": 0.75}, DEAD, 0.25),
        ({"zero_std_group_fraction": 0.25, "zero_advantage_group_fraction": 0.5}, DEAD, 0.25),
        ({"all_correct": 1.0, "all_wrong_frac": 0.25, "all_correct_frac": 0.5, "mixed_frac": 0.25}, DEAD, 0.75),
        ({"all_wrong_frac": 0.25, "all_correct_frac": 0.5}, DEAD, None),  # of the tests of a sample, say
        ({"n_groups_with_signal": 6.0, "n_groups": 8.0}, DEAD, 0.25),
        ({"frac_groups_with_reward_variance": 0.75}, DEAD, 0.25),
        ({"flat_reward_group_ratio": 0.25, "collapsed_group_ratio": 0.5}, DEAD, 0.25),
        ({"informative_group_count": 6.0, "uninformative_group_fraction": 0.25}, DEAD, 0.25),
        ({"effective_prompt_ratio": 0.75}, DEAD, None),  # to some trainers, of samples whose reward is good enough
        ({"rl/frac_groups_all_same": 0.25}, DEAD, 0.25),
        ({"train/non_degenerate_samples_frac": 0.75}, DEAD, 0.25),
        ({"learner/grad_norm": 0.75}, "grad_norm", 0.75),
        ({"train/kl_penalty": 0.75}, "kl", 0.75),
        ({"train/entropy_per_token": 0.75}, "entropy", 0.75),
        ({"all_correct_groups": 3.0, "all_wrong_groups": 1.0, "num_groups": 8.0}, DEAD, 0.5),
        ({"all_correct_groups": 3.0, "num_groups": 8.0}, "frac_all_pass", 0.375),
        ({"frac_dead_groups": 0.5, "zero_std_group_rate": 0.25}, DEAD, None),
        ({"eval/frac_dead_groups": 0.5}, DEAD, None),
        ({"dead_groups_pct": 25.0, "dead_group_length_ratio": 0.5}, DEAD, 0.25),
        ({"zero_std_pct": 62.5}, DEAD, 0.625),
        ({"train/zero_std_pct": 0.5}, DEAD, 0.5),
        ({"reward/zero_std_rate": 0.25, "zero_std_count": 4.0}, DEAD, 0.25),
        ({"rollout/reward_zero_variance_percentage": 12.5}, DEAD, 0.125),
        ({"train/dynamic_filtering_pass_rate": 75.0}, DEAD, 0.25),
        ({"dynamic_filtering_ratio/train": 0.25, "dynamic_filtering_ratio/test": 0.0}, DEAD, 0.25),
        ({"mixed_groups_percent": 75.0}, DEAD, 0.25),
        ({"zero_std_pct_change": 62.5}, DEAD, None),
        ({"zero_std_count": 2.0, "count": 8.0}, DEAD, None),
        ({"all_correct_group_pct": 25.0, "all_wrong_group_pct": 50.0}, DEAD, 0.75),
        ({"zero_std_groups": 2.0}, DEAD, None),
        ({"groups_with_signal": 1.0}, DEAD, None),  # of how many is not logged
        ({"groups_with_signal": 0.75}, DEAD, 0.25),
        ({"zero_variance": 0.75}, DEAD, None),
        ({"stats/mean_reward": 0.5, "reward/format": 0.25, "reward/max": 1.0}, "reward", 0.5),
        ({"mean_r": 0.5, "mean_r_format": 0.25}, "reward", 0.5),
        ({"env/total_reward": 0.5, "batch/avg_reward": 0.25}, "reward", None),
        ({"env/total_reward": 0.5, "rollout/mean/reward/total": 0.25}, "reward", 0.5),
        ({"rewards.std": 0.25}, "reward_std", 0.25),
        ({"policy/raw_grad_norm": 2.0, "policy/grad_norm_clipped": 1.0}, "grad_norm", 2.0),
        ({"ppo_actor/update/actor_loss/avg": 2.0, "critic/loss": 1.0, "policy/kl_loss": 0.5}, "loss", 2.0),
        ({"ppo_actor/update/actor_loss/avg": 2.0, "critic/loss": 1.0, "policy/kl_loss": 0.5}, "kl", 0.5),
        ({"policy/policy_entropy": 1.5, "entropy/coef": 0.1}, "entropy", 1.5),
        ({"ppo_actor/update/clip_ratio/avg": 0.25, "response_length/clip_ratio": 0.5}, "clip_ratio/region_mean", 0.25),
        ({"rollout/avg_response_length": 9.0}, "completions/mean_length", 9.0),
        ({"trainer/learning_rate": 0.1}, "learning_rate", 0.1),
    ],
)
def test_what_trainers_call_the_same(numbers: dict[str, float], name: str, value: float | None) -> None:
    common = applied(numbers, numbers)
    assert common.keys() >= numbers.keys()
    assert common.get(name) == value or (value is not None and math.isnan(value) and math.isnan(common[name]))


def test_a_share_that_is_none_counts_as_nan() -> None:
    shares = dict(enumerate((0.5, -0.5, 1 + 1e-9, math.nan, math.inf)))
    metrics = {step: {"frac_all_fail": share, "reward": share} for step, share in shares.items()} | {5: {}}
    judged, sentences = without_impossible_shares(StepMetrics.from_mapping(metrics))
    assert sentences == ("frac_all_fail is no share at 2 of 6 steps (-0.5 at step 1): that counts as NaN.",)
    assert str(list(judged.by_step("frac_all_fail").values())) == "[0.5, nan, 1.0, nan, nan]"
    assert str([judged[step]["reward"] for step in shares]) == str(list(shares.values()))


@pytest.mark.parametrize(
    ("counts", "largest", "lost"),
    [
        ({"n_degenerate": (2, 4), "n_groups": (2, 2)}, "2", {DEAD}),
        ({"n_degenerate": (2, 0), "n_groups": (2, 0)}, "", set()),
        ({"all_wrong_groups": (1, 2), "all_correct_groups": (1, 1), "num_groups": (2, 2)}, "1.5", {DEAD}),
        # of 4 samples a prompt, a fifth of the prompts pass
        ({"dynamic_filtering_pass_rate": (80, 240)}, "-1.4", {DEAD}),
        ({"informative_groups": (0.25, 1)}, "", set()),
        ({"groups_skipped": (1, 3), "groups_total": (2, 2)}, "", set()),  # a trainer's own: which steps are odd is said
    ],
)
def test_a_share_of_counts_that_is_none_at_any_step_is_no_guess(
    counts: dict[str, tuple[float, float]], largest: str, lost: set[str]
) -> None:
    metrics = StepMetrics.from_mapping({step: {key: pair[step] for key, pair in counts.items()} for step in (0, 1)})
    guessed = naming_of(counts, {})
    left, sentences = guessed.checked_against(metrics)
    assert guessed.parts.keys() - left.parts.keys() == lost
    formulas = [guessed.parts[name].formula for name in sorted(lost)]
    assert list(sentences) == [
        f"{formula} is {largest} at a step, as no share of groups is: it is not {DEAD}." for formula in formulas
    ]


def test_each_key_of_the_table_gives_its_own_name() -> None:
    for metric in COMMON:
        for key in metric.keys:
            assert applied([key], {key: 0.5})[metric.name] == 0.5
    names = [metric.name for metric in COMMON]
    assert len(names) == len(set(names))


def test_a_step_that_lacks_a_part_has_no_derived_number() -> None:
    rows = {1: {"groups_total": 4.0}, 2: {"groups_total": 4.0, "groups_skipped": 1.0}}
    naming = naming_of(["groups_skipped", "groups_total"], {})
    assert naming.apply(StepMetrics.from_mapping(rows)) == {1: rows[1], 2: {**rows[2], DEAD: 0.25}}
    assert naming.sentences == ("By the trainer's names: frac_reward_zero_std is groups_skipped / groups_total.",)


def test_a_name_that_a_person_gave_goes_first() -> None:
    named = parse_metric_columns(["reward=score, frac_reward_zero_std = groups/dead", "own=x"])
    assert named == {"reward": "score", DEAD: "groups/dead", "own": "x"}
    numbers = {"reward": 1.0, "score": 2.0, "groups/dead": 0.5, "x": 3.0}
    common = applied(numbers, numbers, named)
    assert (common["reward"], common[DEAD], common["own"]) == (2.0, 0.5, 3.0)


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="no metric 'groups/dad'") as caught:
        naming_of(["groups/dead", "loss"], {DEAD: "groups/dad"})
    assert "groups/dead" in (caught.value.hint or "")
    for words in (["reward"], ["=x"], ["reward="], [""]):
        refused("takes a name and a column", parse_metric_columns, words, error=UsageError)
    assert parse_metric_columns(None) == {}


def test_a_step_without_the_trainers_number_has_that_of_the_common_name() -> None:
    rows = {1: {"actor/pg_loss": 0.5}, 2: {"loss": 2.0}, 3: {"actor/pg_loss": 0.25, "loss": 3.0}}
    common = naming_of(["actor/pg_loss", "loss"], {"loss": "actor/pg_loss"}).apply(StepMetrics.from_mapping(rows))
    assert [common[step]["loss"] for step in rows] == [0.5, 2.0, 0.25]
