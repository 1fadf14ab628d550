from __future__ import annotations

import dataclasses

import pytest

from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.obstacles import is_reused, reason_against, several_sequences
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.types import Rollout, Tokens

ONE_MICRO_BATCH = {"generation_batch_size": 8, "per_device_train_batch_size": 8}


def reason(**values):
    return reason_against(TrainerSettings(values=values))


@pytest.mark.parametrize(
    ("values", "cause", "text"),
    [
        ({"loss_type": "odd"}, "loss_unknown", "'odd' has no rule"),
        ({"importance_sampling_level": "odd"}, "loss_unknown", "'odd' has no rule"),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, "rollouts_missing", "several generation"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, "batch_split", "shuffled part"),
        ({"loss_type": "bnpo"}, "micro_batches_unknown", "bnpo averages within micro-batches"),
        (
            {"loss_type": "bnpo", "generation_batch_size": 64, "per_device_train_batch_size": 32},
            "micro_batches_unknown",
            "micro-batches",
        ),
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
        (
            {"loss_type": "luspo", "trl_version": "1.9.0", "importance_sampling_level": "sequence", "beta": 0.1},
            "loss_not_on_disk",
            "before TRL 1.10",
        ),
    ],
)
def test_settings_without_exact_weights_give_a_reason(values, cause, text):
    found = reason(**values)
    assert found is not None
    assert found.cause == cause
    assert text in str(found)


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
        {"loss_type": "luspo", "trl_version": "1.9.0", "importance_sampling_level": "sequence"},
    ],
)
def test_settings_that_leave_nothing_open(values):
    assert reason(**values) is None


def test_a_batch_is_reused_where_an_update_does_not_start_with_fresh_rollouts():
    assert not is_reused(TrainerSettings(values={"gradient_accumulation_steps": 4, "steps_per_generation": 2}))
    assert is_reused(TrainerSettings(values={"num_iterations": 2}))


def test_rollouts_of_several_sequences_are_refused_where_these_are_in_the_loss():
    own = Rollout(group_id="g", sample=0, row=0, prompt="", completion="", reward=1.0)
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,))
    several = dataclasses.replace(own, earlier=(before,))
    dropped = dataclasses.replace(own, earlier=(dataclasses.replace(before, mask=(False,)),))
    assert several_sequences([own, dropped]) is None
    found = several_sequences([own, several])
    assert (found.cause, str(found).partition(" were")[0]) == ("several_sequences", "1 of 2 rollouts")
    assert Objective().reason_against([own, several]) == found
