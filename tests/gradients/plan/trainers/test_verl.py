from __future__ import annotations

from typing import Any

import pytest

from gradscope.gradients.plan.trainers.verl import _counts_by_mini_batch, verl_objective
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
ONE_UPDATE = {
    "data.train_batch_size": 2,
    f"{ACTOR}.ppo_mini_batch_size": 2,
    "actor_rollout_ref.rollout.n": 4,
    "trainer.use_v1": True,
}


def settings(**values: Any) -> TrainerSettings:
    """One update a step; ``actor__x`` is an argument of the actor."""
    named = {
        name.replace("actor__", f"{ACTOR}.").replace("correction__", f"{CORRECTION}."): values[name] for name in values
    }
    return TrainerSettings(values={**ONE_UPDATE, **named, "trainer": "verl"}, origin="a file")


def reason(**values: Any) -> Reason:
    found = verl_objective(settings(**values)).cannot
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token-mean", [0.25, 0.25]),
        ("token-sum", [1.0, 1.0]),
        ("seq-mean-token-sum", [0.5, 0.5]),
        ("seq-mean-token-mean", [0.5, 1 / 6]),
        ("seq-mean-token-sum-norm", [0.05, 0.05]),
    ],
)
def test_aggregations_by_hand(mode: str, weights: list[float]) -> None:
    objective = verl_objective(settings(actor__loss_agg_mode=mode, actor__loss_scale_factor=10))
    assert objective.cannot is None
    assert objective.token_weights([[True], [True, True, True]]) == pytest.approx(weights)


def test_arguments_by_their_own_names() -> None:
    objective = verl_objective(
        settings(
            actor__clip_ratio_low=0.1,
            actor__clip_ratio_high=0.28,
            actor__use_kl_loss=True,
            actor__kl_loss_coef=0.02,
            actor__kl_loss_type="mse",
            actor__entropy_coeff=0.01,
            correction__rollout_is="sequence",
            correction__rollout_is_threshold="0.5_2.5",
        )
    )
    assert (objective.epsilon_low, objective.epsilon_high, objective.delta) == (0.1, 0.28, 3.0)
    assert (objective.beta, objective.kl_type, objective.entropy_coef, objective.num_rows) == (0.02, "k2", 0.01, 8)
    correction = objective.correction
    assert correction is not None
    assert (correction.mode, correction.low, correction.high) == ("sequence_mask", 0.5, 2.5)
    assert "temperature" in objective.assumed[-1]


@pytest.mark.parametrize(
    ("values", "cause", "said"),
    [
        ({"actor__ppo_mini_batch_size": 1}, "several_updates", "2 updates"),
        ({"actor__ppo_epochs": 3}, "several_updates", "3 updates"),
        ({"data.train_batch_size": None}, "settings_unknown", "how many updates"),
        ({"actor__loss_agg_mode": "odd"}, "loss_unknown", "loss_agg_mode 'odd'"),
        ({"actor__policy_loss.loss_mode": "clip_cov"}, "loss_unknown", "clip_cov"),
        ({"actor__use_kl_loss": True, "actor__kl_loss_type": "full"}, "loss_unknown", "kl_loss_type"),
        ({"actor__loss_agg_mode": "seq-mean-token-sum-norm"}, "micro_batches_unknown", "longest response"),
        ({"trainer.use_v1": None}, "settings_unknown", "verl's version"),
        ({"verl_version": "0.6.1"}, "micro_batches_unknown", "before verl 0.8"),
        ({"correction__rollout_rs": "token_k1"}, "loss_unknown", "rollout_rs"),
        ({"correction__rollout_is": "token", "correction__rollout_is_batch_normalize": True}, "loss_unknown", "mean"),
        ({"correction__bypass_mode": True, "correction__loss_type": "reinforce"}, "loss_unknown", "reinforce"),
        ({"actor__policy_loss.loss_mode": "gspo", "actor__entropy_coeff": 0.1}, "loss_unknown", "gspo averages"),
        ({"distillation.enabled": True}, "loss_unknown", "distillation"),
    ],
)
def test_what_cannot_be_formed(values: dict[str, Any], cause: str, said: str) -> None:
    found = reason(**values)
    assert found.cause == cause
    assert said in str(found)


def test_the_older_workers_are_told_where_one_micro_batch_is_all() -> None:
    one = {"trainer.n_gpus_per_node": 1, "actor__ppo_micro_batch_size_per_gpu": 8, "verl_version": "0.6.1"}
    assert verl_objective(settings(**one)).cannot is None


def test_who_counts_over_the_mini_batch() -> None:
    def told(**values: Any) -> bool | None:
        return _counts_by_mini_batch(TrainerSettings(values=values))

    assert told() is None
    assert told(verl_version="0.8.0") is told(verl_v1=True) is told(use_legacy_worker_impl="disable") is True
    assert told(verl_version="0.7.1") is told(use_legacy_worker_impl="auto") is False


def test_the_ratio_of_bypass_mode_is_to_the_sampler() -> None:
    objective = verl_objective(settings(correction__bypass_mode=True, correction__rollout_is="token"))
    assert (objective.importance_ratio, objective.ratio_to_logged, objective.correction) == (True, True, None)
