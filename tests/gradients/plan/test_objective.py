from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from trl import GRPOConfig

from gradscope.gradients.plan.losses import RLOO, LossParameters
from gradscope.gradients.plan.objective import Objective, reason_against, several_sequences
from gradscope.rollouts.groups import Rollout, Tokens
from gradscope.rollouts.run import TrainerSettings

ROLLOUT = Rollout(group_id="g", sample=0, row=0, prompt="p", completion="c", reward=1.0)
TRUNCATED = replace(ROLLOUT, status="truncated")
SAMPLED = replace(ROLLOUT, logprobs=(-1.0,))


def objective(**values) -> Objective:
    return Objective.from_settings(TrainerSettings(values=values))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5))
def test_weights_add_up_to_what_each_loss_averages_over(masks):
    counts = [sum(mask) for mask in masks]
    for loss_type, total in (("grpo", sum(c > 0 for c in counts) / len(counts)), ("dapo", float(sum(counts) > 0))):
        weights = Objective(loss_type=loss_type).token_weights(masks)
        assert sum(w * c for w, c in zip(weights, counts, strict=True)) == pytest.approx(total)


def test_settings_are_read_in_trls_names():
    values = {"loss_type": "grpo", "beta": 0.04, "temperature": 0.7, "epsilon": 0.1, "epsilon_high": 0.3, "delta": 2.0}
    result = objective(**values, sapo_temperature_neg=2.0, importance_sampling_level="sequence")
    assert (result.loss_type, result.beta, result.temperature) == ("grpo", 0.04, 0.7)
    assert (result.epsilon_low, result.epsilon_high, result.delta) == (0.1, 0.3, 2.0)
    assert (result.sapo_temperature_neg, result.sapo_temperature_pos) == (2.0, 1.0)
    assert (result.importance_sampling_level, result.cannot) == ("sequence", None)
    assert (result.assumed, result.chat_template_kwargs) == (("use_bias_correction_kl",), {})
    assert objective().assumed == ("loss_type", "beta", "temperature")
    assert objective(chat_template_kwargs={"enable_thinking": False}).chat_template_kwargs == {"enable_thinking": False}


def test_a_step_without_its_rollouts_or_the_length_of_its_loss_has_a_reason():
    invalid = objective(loss_type="odd", generation_batch_size=4)
    assert invalid.cannot is not None
    assert invalid.loss_type == "dapo"
    assert invalid.reason_against([ROLLOUT]) == invalid.cannot  # what the arguments lack comes first
    reason = objective(generation_batch_size=4).reason_against([ROLLOUT] * 3)
    assert str(reason) == "the log holds 3 rollouts of the step, and its update took 4"
    assert reason.cause == "rollouts_missing"
    assert "not known" in str(objective(loss_type="dr_grpo").reason_against([ROLLOUT]))
    assert objective(loss_type="dr_grpo", max_completion_length=8).reason_against([ROLLOUT]) is None


def test_a_reused_batch_needs_the_sampled_log_probabilities():
    reused = objective(num_iterations=2)
    assert reused.importance_ratio
    assert reused.reason_against([ROLLOUT]).cause == "logprobs_missing"
    assert reused.reason_against([ROLLOUT], has_old=True) is None
    assert reused.reason_against([SAMPLED]) is None
    for fresh in ({"num_iterations": 1}, {"gradient_accumulation_steps": 4, "steps_per_generation": 2}):
        assert not objective(**fresh).importance_ratio


def test_a_loss_that_looks_at_the_sampler_needs_its_log_probabilities():
    corrected = objective(use_vllm=True)
    assert corrected.correction is not None
    assert "vLLM's own log-probabilities" in str(corrected.reason_against([ROLLOUT]))
    assert corrected.reason_against([SAMPLED]) is None
    masked = objective(use_vllm=True, vllm_importance_sampling_correction=False, off_policy_mask_threshold=0.1)
    assert masked.needs_sampler
    assert masked.correction is None
    reused = objective(use_vllm=True, num_iterations=2)  # the log has the sampler's, not those of the weights
    assert "sampled with were not logged" in str(reused.reason_against([SAMPLED]))
    assert reused.reason_against([SAMPLED], has_old=True) is None


def test_masked_truncation_needs_the_status_or_exact_ids():
    masking = objective(mask_truncated_completions=True, loss_type="grpo")
    assert masking.reason_against([ROLLOUT]).cause == "truncation_unknown"
    assert masking.reason_against([replace(ROLLOUT, completion_ids=(1,))]) is None
    assert masking.reason_against([TRUNCATED]) is None
    assert masking.counted(TRUNCATED, [True, True]) == (False, False)
    assert masking.counted(replace(ROLLOUT, status="completed"), [True, False]) == (True, False)


def test_what_masked_truncation_divides_by_depends_on_the_version():
    values = {"mask_truncated_completions": True, "loss_type": "dapo"}
    reason = objective(**values).reason_against([TRUNCATED])
    assert reason.cause == "settings_unknown"
    assert "trl_version" in reason.advice
    masks, full = [[True, True], [False, False]], [[True, True], [True, True]]
    for version, weight in (("1.8.0", 1 / 4), ("1.9.0", 1 / 2)):
        expected = objective(**values, trl_version=version)
        assert expected.reason_against([TRUNCATED]) is None
        assert expected.token_weights(masks, full) == [weight, weight]


def test_a_log_without_a_setting_gets_the_default_of_the_installed_trl():
    defaults = {field.name: field.default for field in fields(GRPOConfig)}
    bare = objective()
    assert bare.use_bias_correction_kl is defaults["use_bias_correction_kl"] is True
    assert Objective().use_bias_correction_kl is True
    assert objective(use_bias_correction_kl=False).use_bias_correction_kl is False
    assert bare.epsilon_low == bare.epsilon_high == defaults["epsilon"]
    assert bare.mask_truncated is defaults["mask_truncated_completions"]
    same = [name for name in LossParameters.__struct_fields__ if name in defaults]
    assert len(same) == 10
    changed = {"epsilon_high": 0.2, "max_completion_length": None}  # where TRL's default stands for another setting
    same += ["beta", "loss_type", "temperature"]
    assert {name: getattr(bare, name) for name in same} == {name: defaults[name] for name in same} | changed


ONE_MICRO_BATCH = {"generation_batch_size": 8, "per_device_train_batch_size": 8}
TWO_MICRO_BATCHES = {"generation_batch_size": 64, "per_device_train_batch_size": 32}
OLD_LUSPO = {"loss_type": "luspo", "trl_version": "1.9.0", "importance_sampling_level": "sequence"}


@pytest.mark.parametrize(
    ("values", "cause", "text"),
    [
        ({"loss_type": "odd"}, "loss_unknown", "'odd' has no rule"),
        ({"reward_clip_range": None, "rloo_k": 2}, "loss_unknown", "RLOOTrainer before TRL 0.22"),
        ({"importance_sampling_level": "odd"}, "loss_unknown", "'odd' has no rule"),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, "rollouts_missing", "several generation"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, "batch_split", "shuffled part"),
        ({"loss_type": "bnpo"}, "micro_batches_unknown", "bnpo averages within micro-batches"),
        ({"loss_type": "bnpo", **TWO_MICRO_BATCHES}, "micro_batches_unknown", "micro-batches"),
        ({"top_entropy_quantile": 0.2}, "micro_batches_unknown", "by their entropy"),
        ({"entropy_coef": 0.01}, "micro_batches_unknown", "entropy bonus"),
        ({"use_adaptive_entropy": True}, "micro_batches_unknown", "entropy bonus"),
        (
            {"top_entropy_quantile": 0.2, "use_adaptive_entropy": True, **ONE_MICRO_BATCH},
            "settings_unknown",
            "what the entropy bonus is divided by",
        ),
        ({"neftune_noise_alpha": 5.0}, "dropout", "NEFTune added random noise"),
        ({"use_liger_kernel": True}, "loss_not_on_disk", "Liger"),
        ({"use_vllm": True, "vllm_importance_sampling_mode": "odd"}, "loss_unknown", "'odd' has no rule"),
        ({"loss_type": "luspo"}, "settings_unknown", "TRL's version"),
        ({"loss_type": "luspo", "trl_version": "1.9.0"}, "loss_not_on_disk", "before TRL 1.10"),
        ({**OLD_LUSPO, "beta": 0.1}, "loss_not_on_disk", "before TRL 1.10"),
    ],
)
def test_settings_without_exact_weights_give_a_reason(values, cause, text):
    result = reason_against(TrainerSettings(values=values))
    assert result is not None
    assert result.cause == cause
    assert text in str(result)


@pytest.mark.parametrize(
    "others", [{"normalize_advantages": True}, {"reward_clip_range": [-1, 1], "loss_type": "dapo"}]
)
def test_arguments_that_others_may_have_too_are_not_those_of_rloo(others: dict[str, Any]) -> None:
    assert reason_against(TrainerSettings(values=others)) is None
    assert objective(**others).declared is None


def test_rloo_has_its_kl_term_in_the_rewards_and_corrects_no_sampler() -> None:
    made = objective(reward_clip_range=None, beta=0.05, use_vllm=True)
    assert (made.loss, made.beta, made.correction, made.needs_sampler) == (RLOO, 0.0, None, False)
    assert made.assumed == ("temperature",)


def test_averages_within_micro_batches_by_hand() -> None:
    masks = [[True] * number for number in (1, 3, 2, 0)]
    averages = dict(Objective().other_averages(masks, [2, 4], [[3, 0, 1, 2]]))
    in_order, in_another = averages["a mean over tokens within each micro-batch of 2"]
    assert (in_order, in_another) == ([1 / 8, 1 / 8, 1 / 4, 1 / 4], [1 / 2, 1 / 10, 1 / 10, 1 / 2])
    per_token = averages["a mean over all tokens of the update"]
    assert averages["a mean over tokens within each micro-batch of 4"][:1] == per_token == [[1 / 6] * 4]
    assert averages["a mean over tokens, then over completions"] == [[1 / 4, 1 / 12, 1 / 8, 1 / 4]]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"loss_type": "bnpo", **ONE_MICRO_BATCH},
        {"top_entropy_quantile": 0.2, "entropy_coef": 0.1, "loss_type": "grpo", **ONE_MICRO_BATCH},
        {"top_entropy_quantile": 0.2, "entropy_coef": 0.1, "trl_version": "1.10.0", **ONE_MICRO_BATCH},
        {"router_aux_loss_coef": 0.001},  # of every configuration of TRL 1.8; what it does is the model's to say
        {"importance_sampling_level": "sequence", "beta": 0.1},
        {"use_vllm": True},
        {"num_iterations": 2, "off_policy_mask_threshold": 0.5},
        {"loss_type": "luspo", "trl_version": "1.16.0"},
        OLD_LUSPO,
        {"use_vllm": True, "vllm_importance_sampling_correction": False},
    ],
)
def test_settings_that_leave_nothing_open(values):
    assert reason_against(TrainerSettings(values=values)) is None
    assert objective(**values).cannot is None


def test_rollouts_of_several_sequences_are_refused_where_these_are_in_the_loss():
    rollout = Rollout(group_id="g", sample=0, row=0, prompt="", completion="", reward=1.0)
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,))
    two = replace(rollout, earlier=(before,))
    assert several_sequences([rollout, replace(rollout, earlier=(replace(before, mask=(False,)),))]) is None
    result = several_sequences([rollout, two])
    assert (result.cause, str(result).partition(" were")[0]) == ("several_sequences", "1 of 2 rollouts")
    assert Objective().reason_against([rollout, two]) == result
