"""What the sections of a report are made from: each thing is read or computed once, and shared."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradscope.diagnostics.logged.measure import absence_of
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.logged import LoggedPolicy
from gradscope.results.norms import ReplayReport
from gradscope.results.passk import PassAtKReport
from gradscope.results.rank import RankCurvePoint
from gradscope.results.report import ReportSection
from gradscope.results.tokens import EntropyChange, LogprobChange, TokenKl, TurnShare
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.diagnostics.passk.samples import Samples
    from gradscope.diagnostics.rank.tokens.weighed import WeighedTokens
    from gradscope.diagnostics.report.lengths import Lengths
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import RolloutTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """Something that could not be had."""

    reason: str  # why, a sentence with its period
    hint: str  # what would help, a sentence with its period; may be empty


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenParts:
    """What the tokens of the recomputed steps say beside their rows."""

    weighed: Mapping[int, WeighedTokens] = field(default_factory=dict)
    """Step -> its tokens; empty where they were not looked at."""
    entropy: tuple[EntropyChange, ...] = ()  # by step
    kl: tuple[TokenKl, ...] = ()  # by step that has a reference
    turns: tuple[TurnShare, ...] = ()  # by step and turn, where some completion has two
    logprobs: tuple[LogprobChange, ...] = ()  # of the last step, where it has later weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInputs:
    """Everything that was read and computed for a report."""

    run: Run
    degeneracy: DegeneracyReport | Unavailable  # groups without a gradient
    replay: ReplayReport | Unavailable  # the trainer's numbers, recomputed
    grams: tuple[StepGram, ...]  # the inner products of the gradient rows of each step that was recomputed
    no_grams: Unavailable  # why there are none, where there are none
    curve: tuple[RankCurvePoint, ...] = ()
    """The ranks of each of these steps under the logged advantages, beside their nulls."""
    tokens: tuple[RolloutTokens, ...] | Unavailable
    """The tokens of the rollouts with the largest part of the largest gradient."""
    parts: TokenParts = TokenParts()  # what all tokens of these steps say, where they were looked at
    samples: tuple[Samples, ...]  # samples of held-out prompts, before and after
    passk: PassAtKReport | Unavailable  # pass@k of these samples
    logged: LoggedPolicy = field(default_factory=LoggedPolicy)  # what the log alone says of its policy
    lengths: Lengths | None = None  # how long the rollouts are; None: whoever needs them reads them
    options: Mapping[str, str] = field(default_factory=dict)
    """How the run was read: option of the command line -> its value."""

    @property
    def largest_step(self) -> int | None:
        """The step with the largest gradient of those recomputed; None where none has a gradient."""
        norms = {gram.step: policy.sum() for gram in self.grams if (policy := gram.policy_gram) is not None}
        live = {step: squared for step, squared in norms.items() if squared > 0}
        return max(live, key=lambda step: float(live[step])) if live else None

    def command(self, name: str, *more: str) -> str:
        """A command on this run as a person would type it, read with the same options, as one line for a shell."""
        flags = _OPTIONS[name]
        options = [word for flag, value in self.options.items() if flag in flags for word in (flag, value)]
        return shlex.join(["gradscope", name, self.run.source.path, *options, *more])


_LOG_OPTIONS = ("--reader", "--run-config")
_WEIGHT_OPTIONS = (*_LOG_OPTIONS, "--model", "--initial", "--completion-ids")
_COLUMN_OPTIONS = ("--prompt-column", "--reward-column", "--step-column", "--group-column", "--success-threshold")
_OPTIONS = {
    "claims": (*_WEIGHT_OPTIONS, "--success-threshold"),
    "degeneracy": (*_LOG_OPTIONS, *_COLUMN_OPTIONS),
    "rank": _WEIGHT_OPTIONS,
    "replay": _WEIGHT_OPTIONS,
    "spike": _WEIGHT_OPTIONS,
}
"""Which options of reading each command takes."""


def missing_section(name: str, question: str, absent: Unavailable) -> ReportSection:
    """A section whose data are missing: the reason, and what to log, in place of an answer."""
    return ReportSection(name=name, question=question, missing=f"{absent.reason} {absent.hint}".strip())


def missing_part(name: str, question: str, part: Any, *, anchor: str | None = None) -> ReportSection:
    """The section of a part of what the log says of its policy, where it has no numbers."""
    reason, hint = absence_of(name, part)
    return missing_section(anchor or name, question, Unavailable(reason=f"{reason[0].upper()}{reason[1:]}.", hint=hint))


def visible(token: str) -> str:
    """The text of a token; white space alone as it is written in code."""
    return token if token.strip() else repr(token)
