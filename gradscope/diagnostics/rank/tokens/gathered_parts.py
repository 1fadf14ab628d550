"""The tokens of one step after the other taken apart, and why some questions about them have no answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.logged.as_logged import first_logged
from gradscope.diagnostics.logged.entropy import METRICS
from gradscope.diagnostics.rank.tokens.corrections import correction_effects
from gradscope.diagnostics.rank.tokens.logprob_changes import logprob_change
from gradscope.diagnostics.rank.tokens.parts import entropy_change, token_kinds, token_kl, turn_shares, with_later
from gradscope.diagnostics.rank.tokens.token_changes import token_changes
from gradscope.gradients.engine_options import EngineOptions
from gradscope.results.ranks.token_parts import (
    CorrectionEffect,
    EntropyChange,
    LogprobChange,
    TokenKind,
    TokenKl,
    TurnShare,
)
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.tokens.sums import CountedTokens

_MISSING: Mapping[str, str] = {
    "corrections": "the log does not have the sampler's log-probability of every token",
    "turns": "no completion has a second turn: none has tokens that were not sampled between two that were",
    "kl": "the loss has no KL term to a reference policy",
}
NO_GRADIENT = "the step has no gradient, or not every token has a logged advantage"


@dataclass(slots=True)
class GatheredParts:
    """What has been found so far, over the steps."""

    corrections: list[CorrectionEffect] = field(default_factory=list)
    """By step and correction."""
    kinds: list[TokenKind] = field(default_factory=list)
    """By step and kind of token."""
    entropy: list[EntropyChange] = field(default_factory=list)
    """By step."""
    kl: list[TokenKl] = field(default_factory=list)
    """By step."""
    turns: list[TurnShare] = field(default_factory=list)
    """By step and turn."""
    logprobs: tuple[LogprobChange, ...] = ()
    """By step."""
    tokens: dict[int, CountedTokens] = field(default_factory=dict)
    """Step -> its tokens."""
    missing: dict[str, str] = field(default_factory=dict)
    """Name of a table -> why the last step that has nothing for it does not."""

    def take(self, run: Run, measured: MeasuredStep) -> MeasuredStep:
        """Take in one step.

        Args:
            measured: Its answer is that of a ``PartsQuestion``.

        Returns:
            The step with the answer about its rows alone.
        """
        if not measured.answer:
            return measured
        rows, found = measured.answer
        step = measured.step
        if found is None:
            self.missing |= dict.fromkeys((*_MISSING, "energy", "entropy", "logprobs"), f"step {step}: {NO_GRADIENT}")
            return replace(measured, answer=rows)
        self.tokens[step] = found.tokens
        logged = first_logged(run, METRICS)
        of_step = {
            "corrections": correction_effects(step, found),
            "kinds": token_kinds(step, found, rows),
            "entropy": [entropy_change(step, found, logged[1] if logged else {})],
            "kl": [kl for kl in [token_kl(step, found, measured.groups)] if kl is not None],
            "turns": turn_shares(step, found),
        }
        for name, parts in of_step.items():
            getattr(self, name).extend(parts)
            if not parts:
                self.missing[name] = f"step {step}: {_MISSING[name]}"
        return replace(measured, answer=rows)

    def look_later(self, run: Run, options: EngineOptions) -> None:
        """What became of the tokens of all steps, when no other weights are in memory."""
        changes, missing = token_changes(run, self.tokens, options)
        self.logprobs = tuple(logprob_change(step, self.tokens[step], change) for step, change in changes.items())
        self.entropy = [
            with_later(one, self.tokens[one.step], changes[one.step]) if one.step in changes else one
            for one in self.entropy
        ]
        for step, reason in missing.items():
            self.missing["logprobs"] = f"step {step}: {reason}"
        self.tokens.clear()
