from __future__ import annotations

from typing import Any

import pytest

from gradscope.gradients.plan.trainers.nemo_rl import _weighs_kl, nemo_rl_objective
from gradscope.rollouts.run import TrainerSettings

ONE_UPDATE = {
    "grpo.num_prompts_per_step": 2,
    "grpo.num_generations_per_prompt": 4,
    "policy.train_global_batch_size": 8,
    "loss_fn.use_cispo": False,
}


def settings(**values: Any) -> TrainerSettings:
    """One update a step; names without a dot are of ``loss_fn``."""
    named = {name if "." in name else f"loss_fn.{name}": value for name, value in values.items()}
    return TrainerSettings(values={**ONE_UPDATE, **named, "trainer": "nemo-rl"}, origin="a file")


def test_levels_by_hand() -> None:
    masks = [[True], [True, True, True], [False]]
    assert nemo_rl_objective(settings()).token_weights(masks) == [0.25, 0.25, 0.25]
    by_sequence = nemo_rl_objective(settings(token_level_loss=False)).token_weights(masks)
    assert by_sequence == pytest.approx([0.5, 1 / 6, 0.5])


def test_the_correction_by_its_types() -> None:
    given = {"use_importance_sampling_correction": True, "truncated_importance_sampling_ratio": 2.0}
    assert nemo_rl_objective(settings()).correction is None
    modes = {"tis": "token_truncate", "icepop": "token_mask"}
    for kind, mode in modes.items():
        correction = nemo_rl_objective(settings(**given, truncated_importance_sampling_type=kind)).correction
        assert correction is not None
        assert (correction.mode, correction.low, correction.high) == (mode, None, 2.0)


def test_the_kl_term_and_its_own_weight() -> None:
    objective = nemo_rl_objective(settings(reference_policy_kl_penalty=0.1, reference_policy_kl_type="k1"))
    assert (objective.beta, objective.kl_type, objective.use_bias_correction_kl) == (0.1, "k1", True)
    assert nemo_rl_objective(settings(use_kl_in_reward=True)).beta == 0.0
    assert _weighs_kl(TrainerSettings(values={"nemo_rl_version": "0.6.0"})) is False
    assert _weighs_kl(TrainerSettings(values={"loss_fn.token_level_loss": True}, origin="a file")) is False
    assert _weighs_kl(TrainerSettings()) is None


@pytest.mark.parametrize(
    ("values", "cause", "said"),
    [
        ({"policy.train_global_batch_size": 4}, "several_updates", "the last of 2 updates"),
        ({"policy.train_global_batch_size": None}, "settings_unknown", "how many updates"),
        ({"reference_policy_kl_type": "k9"}, "loss_unknown", "k9"),
        ({"use_on_policy_kl_approximation": True}, "loss_unknown", "use_on_policy_kl_approximation"),
        ({"positive_example_nll_weight": 0.1}, "loss_unknown", "positive_example"),
        ({"truncated_importance_sampling_type": "seq-mask-tis"}, "loss_unknown", "seq-mask-tis"),
        ({"new_term": 0.5}, "loss_unknown", "loss_fn has new_term"),
        ({"policy.generation.top_p": 0.9}, "loss_unknown", "top_p = 0.9"),
    ],
)
def test_what_cannot_be_formed(values: dict[str, Any], cause: str, said: str) -> None:
    found = nemo_rl_objective(settings(**values)).cannot
    assert found is not None
    assert found.cause == cause
    assert said in str(found)
