"""The tokens of several steps, each step's gradient and that of their entropy, and what became of them later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradscope.diagnostics.rank.tokens.parts_question import WeighedTokens
from gradscope.diagnostics.rank.tokens.token_changes import TokenChange, token_changes
from gradscope.gradients.engine_options import EngineOptions
from gradscope.rollouts.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTokens:
    """What is known of the tokens of some steps."""

    weighed: Mapping[int, WeighedTokens]
    """Step -> its tokens."""
    changes: Mapping[int, TokenChange]
    """Step -> what became of them by the next checkpoint on disk."""
    missing: Mapping[int, str]
    """Of the other steps why there is no change."""


def follow(run: Run, weighed: Mapping[int, WeighedTokens], options: EngineOptions) -> FollowedTokens:
    """Look at the tokens once more, under later weights.

    Args:
        weighed: Step -> its tokens.

    Returns:
        These, with their changes.
    """
    changes, missing = token_changes(run, {step: one.tokens for step, one in weighed.items()}, options)
    return FollowedTokens(weighed=weighed, changes=changes, missing=missing)
