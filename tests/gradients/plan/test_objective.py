from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import GRPOConfig

from gradscope.gradients.plan.objective import Objective
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.types import Rollout

ROLLOUT = Rollout(group_id="g", sample=0, row=0, prompt="p", completion="c", reward=1.0)


def objective(**values) -> Objective:
    return Objective.from_settings(TrainerSettings(values=values))


def test_weights_by_hand():
    masks = [[True, True, True], [True, False, False]]
    assert Objective(loss_type="grpo").token_weights(masks) == [1 / 6, 1 / 2]
    assert Objective(loss_type="dapo").token_weights(masks) == [1 / 4, 1 / 4]
    assert Objective(loss_type="bnpo").token_weights(masks) == [1 / 4, 1 / 4]
    assert Objective(loss_type="dr_grpo", max_completion_length=10).token_weights(masks) == [1 / 20, 1 / 20]


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5))
def test_weights_add_up_to_what_each_loss_averages_over(masks):
    counts = [sum(mask) for mask in masks]
    for loss_type, total in (("grpo", sum(c > 0 for c in counts) / len(counts)), ("dapo", float(sum(counts) > 0))):
        weights = Objective(loss_type=loss_type).token_weights(masks)
        assert sum(w * c for w, c in zip(weights, counts, strict=True)) == pytest.approx(total)


def test_dr_grpo_without_its_length_is_a_callers_bug():
    with pytest.raises(ValueError, match="divides by max_completion_length"):
        Objective(loss_type="dr_grpo").token_weights([[True]])


def test_settings_are_read_in_trls_names():
    found = objective(loss_type="grpo", beta=0.04, temperature=0.7, epsilon=0.1, epsilon_high=0.3, delta=2.0)
    assert found.chat_template_kwargs == {}
    assert objective(chat_template_kwargs={"enable_thinking": False}).chat_template_kwargs == {"enable_thinking": False}
    assert (found.loss_type, found.beta, found.temperature) == ("grpo", 0.04, 0.7)
    assert (found.epsilon_low, found.epsilon_high, found.delta) == (0.1, 0.3, 2.0)
    assert found.assumed == ("use_bias_correction_kl",)
    assert found.cannot is None


def test_what_is_not_known_is_named():
    assert objective().assumed == ("loss_type", "beta", "temperature")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"loss_type": "sapo"}, "'sapo' has no rule"),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, "several generation batches"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, "shuffled part"),
        ({"loss_type": "bnpo", "generation_batch_size": 64, "per_device_train_batch_size": 32}, "micro-batches"),
        ({"top_entropy_quantile": 0.2}, "entropy"),
        ({"entropy_coef": 0.01}, "entropy bonus"),
        ({"use_adaptive_entropy": True}, "entropy bonus"),
        ({"router_aux_loss_coef": 0.001}, "load-balancing"),
        ({"use_liger_kernel": True}, "Liger"),
        ({"use_vllm": True}, "vLLM"),
        ({"beta": 0.1, "sync_ref_model": True}, "reference moves"),
        ({"importance_sampling_level": "sequence", "num_iterations": 2}, "per sequence"),
        ({"importance_sampling_level": "sequence", "beta": 0.1}, "per sequence"),
        ({"num_iterations": 2, "off_policy_mask_threshold": 0.5}, "masked"),
    ],
)
def test_settings_without_exact_weights_give_a_reason(values, reason):
    found = objective(**values)
    assert found.cannot is not None
    assert reason in found.cannot
    assert found.reason_against([ROLLOUT]) == found.cannot


def test_sequence_level_ratios_are_token_level_ones_while_on_policy():
    assert objective(importance_sampling_level="sequence").cannot is None
    assert objective(use_vllm=True, vllm_importance_sampling_correction=False).cannot is None
    assert objective(loss_type="bnpo", generation_batch_size=8, per_device_train_batch_size=8).cannot is None


def test_a_reused_batch_needs_the_sampled_log_probabilities():
    reused = objective(num_iterations=2)
    assert reused.importance_ratio
    assert "log-probabilities" in reused.reason_against([ROLLOUT])
    assert reused.reason_against([dataclasses.replace(ROLLOUT, logprobs=(-1.0,))]) is None
    assert not objective(num_iterations=1).importance_ratio


def test_rollouts_missing_from_the_step_are_noticed():
    reason = objective(generation_batch_size=4).reason_against([ROLLOUT] * 3)
    assert reason == "the log holds 3 of the 4 rollouts of the step"


def test_masked_truncation_needs_the_status():
    masking = objective(mask_truncated_completions=True)
    assert "which were truncated" in masking.reason_against([ROLLOUT])
    truncated = dataclasses.replace(ROLLOUT, status="truncated")
    assert masking.reason_against([truncated]) is None
    assert masking.counted(truncated, [True, True]) == (False, False)
    assert masking.counted(dataclasses.replace(ROLLOUT, status="completed"), [True, False]) == (True, False)


def test_dr_grpo_needs_the_limit():
    assert "not known" in objective(loss_type="dr_grpo").reason_against([ROLLOUT])
    assert objective(loss_type="dr_grpo", max_completion_length=8).reason_against([ROLLOUT]) is None


def test_a_log_without_a_setting_gets_the_default_of_the_installed_trl():
    defaults = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    bare = objective()
    assert bare.use_bias_correction_kl is defaults["use_bias_correction_kl"] is True
    assert Objective().use_bias_correction_kl is True
    assert objective(use_bias_correction_kl=False).use_bias_correction_kl is False
    assert bare.beta == defaults["beta"]
    assert bare.loss_type == defaults["loss_type"]
    assert bare.temperature == defaults["temperature"]
    assert bare.epsilon_low == bare.epsilon_high == defaults["epsilon"]
    assert bare.mask_truncated is defaults["mask_truncated_completions"]
