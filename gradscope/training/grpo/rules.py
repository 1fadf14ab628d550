"""The rule of a run: those that need no torch by their name, the critic with what the configuration says of it."""

from __future__ import annotations

from gradscope.advantages import rules
from gradscope.advantages.rules import Rule
from gradscope.training.grpo.token_critic import TokenCritic
from gradscope.training.setup.config import TrainConfig


def make_rule(config: TrainConfig, *, width: int) -> Rule:
    """The rule that a run is trained with, with nothing remembered yet.

    Args:
        config: The configuration.
        width: Numbers of the policy's hidden states.

    Returns:
        The rule.
    """
    if config.advantage == "token_critic":
        return TokenCritic(width, config.critic_learning_rate)
    return rules.make_rule(config.advantage)
