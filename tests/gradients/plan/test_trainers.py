from math import inf
from typing import Any

import pytest

from gradscope.gradients.plan import trainers
from gradscope.gradients.plan.losses import within_both_bounds, within_one_bound
from gradscope.gradients.plan.objective import Objective
from gradscope.rollouts.run import TrainerSettings
from tests.diagnostics.made_up_runs import group_of, with_fields

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
SHORT = {"actor__": f"{ACTOR}.", "correction__": f"{CORRECTION}.", "loss__": "trainer.loss.", "fn__": "loss_fn."}
ONE_UPDATE: dict[str, dict[str, Any]] = {
    "verl": {
        "data.train_batch_size": 2,
        f"{ACTOR}.ppo_mini_batch_size": 2,
        "actor_rollout_ref.rollout.n": 4,
        "trainer.use_v1": True,
    },
    "nemo-rl": {
        "grpo.num_prompts_per_step": 2,
        "grpo.num_generations_per_prompt": 4,
        "policy.train_global_batch_size": 8,
        "loss_fn.use_cispo": False,
    },
    "prime-rl": {},
}


def objective(trainer: str, **values: Any) -> Objective:
    """The loss of a trainer with one update a step; ``actor__x`` is an argument of verl's actor, and so on."""
    named = dict(values)
    for short, long in SHORT.items():
        named = {name.replace(short, long): value for name, value in named.items()}
    return trainers.objective_of(
        TrainerSettings(values={**ONE_UPDATE[trainer], **named, "trainer": trainer}, origin="a file")
    )


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
    made = objective("verl", actor__loss_agg_mode=mode, actor__loss_scale_factor=10)
    assert made.cannot is None
    assert made.token_weights([[True], [True, True, True]]) == pytest.approx(weights)


def test_arguments_by_their_own_names() -> None:
    made = objective(
        "verl",
        actor__clip_ratio_low=0.1,
        actor__clip_ratio_high=0.28,
        actor__use_kl_loss=True,
        actor__kl_loss_coef=0.02,
        actor__kl_loss_type="mse",
        actor__entropy_coeff=0.01,
        correction__rollout_is="sequence",
        correction__rollout_is_threshold="0.5_2.5",
    )
    assert (made.epsilon_low, made.epsilon_high, made.delta) == (0.1, 0.28, 3.0)
    assert (made.beta, made.kl_type, made.entropy_coef, made.num_rows) == (0.02, "k2", 0.01, 8)
    correction = made.correction
    assert correction is not None
    assert (correction.mode, correction.low, correction.high) == ("sequence_mask", 0.5, 2.5)
    assert "temperature" in made.assumed[-1]


@pytest.mark.parametrize(
    ("trainer", "values", "cause", "output"),
    [
        ("verl", {"actor__ppo_mini_batch_size": 1}, "several_updates", "2 updates"),
        ("verl", {"actor__ppo_epochs": 3}, "several_updates", "3 updates"),
        ("verl", {"data.train_batch_size": None}, "settings_unknown", "how many updates"),
        ("verl", {"actor__loss_agg_mode": "odd"}, "loss_unknown", "loss_agg_mode 'odd'"),
        ("verl", {"actor__policy_loss.loss_mode": "clip_cov"}, "loss_unknown", "clip_cov"),
        ("verl", {"actor__use_kl_loss": True, "actor__kl_loss_type": "full"}, "loss_unknown", "kl_loss_type"),
        ("verl", {"actor__loss_agg_mode": "seq-mean-token-sum-norm"}, "micro_batches_unknown", "longest response"),
        ("verl", {"trainer.use_v1": None}, "settings_unknown", "verl's version"),
        ("verl", {"verl_version": "0.6.1"}, "micro_batches_unknown", "before verl 0.8"),
        ("verl", {"correction__rollout_rs": "token_k1"}, "loss_unknown", "rollout_rs"),
        (
            "verl",
            {"correction__rollout_is": "token", f"{CORRECTION}.rollout_is_batch_normalize": True},
            "loss_unknown",
            "mean",
        ),
        ("verl", {"correction__bypass_mode": True, "correction__loss_type": "reinforce"}, "loss_unknown", "reinforce"),
        (
            "verl",
            {"actor__policy_loss.loss_mode": "gspo", "actor__entropy_coeff": 0.1},
            "loss_unknown",
            "gspo averages",
        ),
        ("verl", {"distillation.enabled": True}, "loss_unknown", "distillation"),
        ("nemo-rl", {"policy.train_global_batch_size": 4}, "several_updates", "the last of 2 updates"),
        ("nemo-rl", {"policy.train_global_batch_size": None}, "settings_unknown", "how many updates"),
        ("nemo-rl", {"fn__reference_policy_kl_type": "k9"}, "loss_unknown", "k9"),
        ("nemo-rl", {"fn__use_on_policy_kl_approximation": True}, "loss_unknown", "use_on_policy_kl_approximation"),
        ("nemo-rl", {"fn__positive_example_nll_weight": 0.1}, "loss_unknown", "positive_example"),
        ("nemo-rl", {"fn__truncated_importance_sampling_type": "seq-mask-tis"}, "loss_unknown", "seq-mask-tis"),
        ("nemo-rl", {"fn__new_term": 0.5}, "loss_unknown", "loss_fn has new_term"),
        ("nemo-rl", {"policy.generation.top_p": 0.9}, "loss_unknown", "top_p = 0.9"),
        ("prime-rl", {"trainer.loss.type": "custom"}, "loss_unknown", "'custom'"),
        ("prime-rl", {"trainer.loss.teacher_tau": 0.5, "trainer.teacher.model": "x"}, "loss_unknown", "teacher"),
        ("prime-rl", {"trainer.loss.ratio_type": "token"}, "loss_unknown", "trainer.loss has ratio_type"),
        ("prime-rl", {"orchestrator.sampling.temp_scheduler.type": "linear"}, "loss_unknown", "schedule"),
        ("prime-rl", {"a.sampling.temperature": 0.5, "b.sampling.temperature": 1.0}, "loss_unknown", "different temp"),
    ],
)
def test_what_cannot_be_formed(trainer: str, values: dict[str, Any], cause: str, output: str) -> None:
    cannot = objective(trainer, **values).cannot
    assert cannot is not None
    assert cannot.cause == cause
    assert output in str(cannot)


def test_who_counts_over_the_mini_batch() -> None:
    def counts(**values: Any) -> bool | None:
        return trainers._counts_by_mini_batch(TrainerSettings(values=values))

    assert counts() is None
    assert counts(verl_version="0.8.0") is counts(verl_v1=True) is counts(use_legacy_worker_impl="disable") is True
    assert counts(verl_version="0.7.1") is counts(use_legacy_worker_impl="auto") is False
    first = {"trainer.n_gpus_per_node": 1, "actor__ppo_micro_batch_size_per_gpu": 8, "verl_version": "0.6.1"}
    assert objective("verl", **first).cannot is None  # one micro-batch is all


def test_the_ratio_of_bypass_mode_is_to_the_sampler() -> None:
    made = objective("verl", correction__bypass_mode=True, correction__rollout_is="token")
    assert (made.importance_ratio, made.ratio_to_logged, made.correction) == (True, True, None)


def test_levels_of_nemo_rl_by_hand() -> None:
    masks = [[True], [True, True, True], [False]]
    assert objective("nemo-rl").token_weights(masks) == [0.25, 0.25, 0.25]
    by_sequence = objective("nemo-rl", fn__token_level_loss=False).token_weights(masks)
    assert by_sequence == pytest.approx([0.5, 1 / 6, 0.0])


def test_the_correction_of_nemo_rl_by_its_types() -> None:
    inputs = {"fn__use_importance_sampling_correction": True, "fn__truncated_importance_sampling_ratio": 2.0}
    assert objective("nemo-rl").correction is None
    for kind, mode in {"tis": "token_truncate", "icepop": "token_mask"}.items():
        correction = objective("nemo-rl", **inputs, fn__truncated_importance_sampling_type=kind).correction
        assert correction is not None
        assert (correction.mode, correction.low, correction.high) == (mode, None, 2.0)


def test_the_kl_term_and_its_own_weight() -> None:
    made = objective("nemo-rl", fn__reference_policy_kl_penalty=0.1, fn__reference_policy_kl_type="k1")
    assert (made.beta, made.kl_type, made.use_bias_correction_kl) == (0.1, "k1", True)
    assert objective("nemo-rl", fn__use_kl_in_reward=True).beta == 0.0
    bounds = [objective("nemo-rl", **values).kl_bounds for values in ({}, {"fn__kl_output_clamp_value": None})]
    assert [*bounds, objective("nemo-rl", nemo_rl_version="0.4.0").kl_bounds] == [(20, 10), (20, inf), (inf, inf)]
    assert trainers._weighs_kl(TrainerSettings(values={"nemo_rl_version": "0.6.0"})) is False
    assert trainers._weighs_kl(TrainerSettings(values={"loss_fn.token_level_loss": True}, origin="a file")) is False
    assert trainers._weighs_kl(TrainerSettings()) is None


def test_the_default_of_prime_rl_is_a_ratio_to_the_sampler_with_a_squared_log_ratio() -> None:
    made = objective("prime-rl", loss__type="default", loss__dppo_mask_high=0.3, loss__kl_tau=0.01, loss__adv_tau=0.5)
    assert made.loss.term is within_one_bound
    assert (made.epsilon_low, made.epsilon_high, made.advantage_scale) == (0.2, 0.3, 0.5)
    assert (made.beta, made.kl_type, made.kl_to_sampler, made.has_reference) == (0.01, "square", True, False)
    assert made.token_weights([[True], [True, False, True]]) == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ({"loss__ipo_mask_low": 0.05, "loss__ipo_mask_high": 0.2}, (0.05, 0.2)),
        ({"loss__type": "ipo", "loss__ipo_threshold": 0.07}, (0.07, 0.07)),
    ],
)
def test_both_bounds_under_their_older_and_newer_names(values: dict[str, Any], bounds: tuple[float, float]) -> None:
    made = objective("prime-rl", **values)
    assert made.loss.term is within_both_bounds
    assert (made.epsilon_low, made.epsilon_high) == bounds


def test_the_temperature_is_that_of_training() -> None:
    values = {"orchestrator.eval.sampling.temperature": 0.1, "orchestrator.train.sampling.temperature": 0.7}
    assert trainers.TRAINERS["prime-rl"](TrainerSettings(values=values)).temperature == 0.7
    assert trainers.TRAINERS["prime-rl"](TrainerSettings()).temperature == 1.0


def test_the_trainer_that_the_arguments_name_decides_and_else_it_is_trl() -> None:
    assert trainers.objective_of(TrainerSettings()).declared is None
    for name in trainers.TRAINERS:
        made = trainers.objective_of(TrainerSettings(values={"trainer": name}))
        assert made.loss is made.declared
        assert "0x" not in repr(made)  # the name of interrupted work is alike in every process


def test_rollouts_without_a_token_leave_the_mean_of_their_micro_batch_before_verl_0_8() -> None:
    step = [with_fields(group_of([1.0, 0.0] * 4, step=1), mask=mask) for mask in ([(True,)] * 8, [(False,)] * 8)]
    for mode, version, reason in (
        ("seq-mean-token-mean", "0.7.1", "micro_batches_unknown"),
        ("seq-mean-token-sum", "0.6.1", "micro_batches_unknown"),
        ("seq-mean-token-mean", "0.8.0", None),
        ("token-mean", "0.8.0", None),
    ):
        made = objective("verl", actor__loss_agg_mode=mode, verl_version=version)
        assert made.reason_against(step[0].rollouts) is None
        against = made.reason_against(step[1].rollouts)
        assert (against and against.cause) == reason


@pytest.mark.parametrize(
    ("mode", "version", "weights"),
    [
        ("seq-mean-token-mean", "0.7.1", [1 / 4, 0.0, 1 / 2]),
        ("seq-mean-token-sum", "0.6.1", [1 / 2, 0.0, 1 / 2]),
        ("seq-mean-token-sum", "0.8.0", [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_rollouts_without_a_token_are_left_out_of_one_micro_batch(mode: str, version: str, weights: list) -> None:
    whole = {"trainer.n_gpus_per_node": 1, "actor__ppo_micro_batch_size_per_gpu": 8, "actor__loss_agg_mode": mode}
    made = objective("verl", verl_version=version, **whole)
    masks = [[True] * number for number in (2, 0, 1)]
    assert (made.token_weights(masks), made.cannot_with_empty) == (weights, None)
    assert objective("verl", verl_version="0.5.0", **whole).cannot_with_empty is not None


def test_the_trainer_of_0_9_keeps_its_loss_where_the_sampler_is_bypassed() -> None:
    arguments = {"correction__bypass_mode": True, "actor__policy_loss.loss_mode": "cispo"}
    assert objective("verl", **arguments).loss_type == "verl's cispo, token-mean"
    older = objective("verl", **arguments, **{"trainer.use_v1": False})
    assert older.loss_type == "verl's bypass_mode, token-mean"


def test_an_update_took_as_many_rollouts_as_the_arguments_say() -> None:
    made = objective("verl")
    assert made.reason_against(group_of([1.0, 0.0] * 4, step=1).rollouts) is None
    for size, words in ((6, "Log every rollout of the step"), (16, "Log with each update the rollouts that it used")):
        assert words in made.reason_against(group_of([1.0, 0.0] * (size // 2), step=1).rollouts).advice
