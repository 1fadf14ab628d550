"""What the sections of a report are made from, each thing read or computed once, and the rollouts that it shows.

These are whole groups of a few steps, those that pull hardest first.
"""

from __future__ import annotations

import shlex
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.logged.policy import ENDED, absence_of
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import projection_shares
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.logged import LoggedPolicy
from gradscope.results.norms import ReplayReport
from gradscope.results.passk import PassAtKReport
from gradscope.results.rank import EntropyChange, LogprobChange, RankCurvePoint, TokenKl, TurnShare
from gradscope.results.report import ReadGroup, ReadRollout, ReportSection
from gradscope.rollouts.groups import (
    MAX_READ_BACK,
    UNKNOWN,
    RewardTable,
    RolloutGroup,
    holds_rewards_alone,
    rollouts_by_step,
)
from gradscope.rollouts.run import Run
from gradscope.say import counted, interval, number

if TYPE_CHECKING:
    from gradscope.diagnostics.passk.comparison import Samples
    from gradscope.diagnostics.rank.tokens import WeighedTokens
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import RolloutTokens


class Unavailable(Struct, frozen=True, kw_only=True):
    """A part of the page that could not be made."""

    reason: str  # why, a sentence with its period
    hint: str  # what would help, a sentence with its period; may be empty


class TokenParts(Struct, frozen=True, kw_only=True):
    """Measurements of the tokens of the recomputed steps other than their rows."""

    weighed: Mapping[int, WeighedTokens] = {}
    """Step -> its tokens; empty where they were not looked at."""
    entropy: tuple[EntropyChange, ...] = ()  # by step
    kl: tuple[TokenKl, ...] = ()  # by step that has a reference
    turns: tuple[TurnShare, ...] = ()  # by step and turn, where some completion has two
    logprobs: tuple[LogprobChange, ...] = ()  # of the last step, where it has later weights


class RunLengths(Struct, frozen=True, kw_only=True):
    """The rollouts of groups whose rewards are all known, [R] each."""

    unit: str  # tokens or characters
    values: NDArray[np.int64]
    rewards: NDArray[np.float64]
    steps: NDArray[np.int64]
    samples: NDArray[np.int64]
    groups: NDArray[np.int64]  # the indices of their groups in ``names``
    prompts: NDArray[np.int64]  # a number for each prompt
    names: Sequence[str]


class Lengths:
    """How long each rollout is and what it is worth, of groups whose rewards are all known, and what was cut off."""

    def __init__(self) -> None:
        self._tables: list[RewardTable] = []
        self.num_judged = self.num_cut = 0  # completions of which it is known whether they were cut off, and that were
        self._sizes, self._cut_sizes = array("d"), array("d")  # absolute advantages
        self.num_texts = self.num_empty = self.num_repeats = 0
        """Completions with a text, those that are empty, and those whose text an earlier one of their group has."""
        self.num_torn = 0  # groups in which one text has several rewards

    def add_step(self, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""
        for rollout in (rollout for group in groups for rollout in group.rollouts if rollout.status in ENDED):
            self.num_judged += 1
            if rollout.advantage is not None:
                self._sizes.append(abs(rollout.advantage))
            if rollout.status == "truncated":
                self.num_cut += 1
                self._cut_sizes.append(abs(rollout.advantage or 0.0))
        self.add(RewardTable.from_groups(groups, with_completions=True))

    def add(self, table: RewardTable) -> None:
        """Take in further groups, whose completions are measured."""
        table = table.select(table.is_complete)
        if not len(table):
            return
        self._tables.append(replace(table, prompt_texts=None, rewards={}))  # which all steps together need not hold
        measured, (repeats, are_torn) = np.asarray(table.num_characters), table.repeats
        self.num_texts += int(np.sum(measured > 0))
        self.num_empty += int(np.sum(measured == 0))
        self.num_repeats += int(repeats.sum())
        self.num_torn += int(np.sum(table.sums(are_torn) > 0))

    def join(self, other: Lengths) -> None:
        """Take in those of further steps."""
        self._tables += other._tables
        self.num_texts += other.num_texts
        self.num_empty += other.num_empty
        self.num_repeats += other.num_repeats
        self.num_torn += other.num_torn
        self.num_judged += other.num_judged
        self.num_cut += other.num_cut
        self._sizes += other._sizes
        self._cut_sizes += other._cut_sizes

    @property
    def frac_advantage_cut(self) -> float | None:
        """The part of the absolute advantages that was cut off; None where not known, or nothing of nothing."""
        total = sum(self._sizes)
        return sum(self._cut_sizes) / total if self.num_cut and len(self._sizes) == self.num_judged and total else None

    def all_steps(self) -> RunLengths:
        """Those of all steps."""
        tables = self._tables or [RewardTable.from_groups(())]
        exact = all(table.num_tokens is not None and UNKNOWN not in table.num_tokens for table in self._tables)
        names = [name for table in tables for name in table.ids()]
        prompts = [table.prompts[index] for table in tables for index in table.prompt.tolist()]
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        sizes = np.concatenate([table.size for table in tables])
        unit = "tokens" if exact and self._tables else "characters"

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(table, name) for table in self._tables] or [np.zeros(0, dtype=np.int64)])

        return RunLengths(
            unit=unit,
            values=joined(f"num_{unit}"),
            rewards=joined("reward"),
            steps=np.repeat(joined("step"), sizes),
            samples=np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes),
            groups=np.repeat(np.arange(len(names)), sizes),
            prompts=np.repeat([numbers[prompt] for prompt in prompts], sizes).astype(np.int64),
            names=names,
        )


class ReportInputs(Struct, frozen=True, kw_only=True):
    """Everything that was read and computed for a report."""

    run: Run
    degeneracy: DegeneracyReport | Unavailable  # groups without a gradient
    replay: ReplayReport | Unavailable  # the trainer's numbers, recomputed
    grams: tuple[StepGram, ...]  # the inner products of the gradient rows of each step that was recomputed
    no_grams: Unavailable  # why there are none, where there are none
    curve: tuple[RankCurvePoint, ...]  # the ranks of each of these steps under the logged advantages, with their nulls
    tokens: tuple[RolloutTokens, ...] | Unavailable
    """The tokens of the rollouts with the largest part of the largest gradient."""
    parts: TokenParts  # what all tokens of these steps say, where they were looked at
    samples: tuple[Samples, ...]  # samples of held-out prompts, before and after
    passk: PassAtKReport | Unavailable  # pass@k of these samples
    logged: LoggedPolicy  # what the log alone says of its policy
    lengths: Lengths  # how long the rollouts are
    options: Mapping[str, str]  # how the run was read: option of the command line -> its value

    @property
    def live(self) -> list[tuple[StepGram, NDArray[np.float64]]]:
        """The recomputed steps that have a gradient under the logged advantages, each with its Gram matrix."""
        return [(gram, matrix) for gram in self.grams if (matrix := gram.policy_gram) is not None and matrix.sum() > 0]

    @property
    def largest_step(self) -> int | None:
        """The step with the largest gradient of those recomputed; None where none has a gradient."""
        return max(self.live, key=lambda pair: float(pair[1].sum()))[0].step if self.live else None

    def command(self, name: str, *arguments: str) -> str:
        """A command on this run as a person would type it, read with the same options, as one line for a shell.

        Empty where the command has no option for a column that was named: it could not read the run.
        """
        flags = _OPTIONS[name]
        if not self.options.keys().isdisjoint(set(_NAMED_COLUMNS) - set(flags)):
            return ""
        options = [word for flag, value in self.options.items() if flag in flags for word in (flag, value)]
        return shlex.join(["gradscope", name, self.run.source.path, *options, *arguments])


_LOG_OPTIONS = ("--reader", "--run-config")
_WEIGHT_OPTIONS = (*_LOG_OPTIONS, "--model", "--initial", "--completion-ids")
_NAMED_COLUMNS = ("--prompt-column", "--reward-column", "--step-column", "--group-column")
_COLUMN_OPTIONS = (*_NAMED_COLUMNS, "--success-threshold")
_OPTIONS = {
    "claims": (*_WEIGHT_OPTIONS, "--success-threshold"),
    "degeneracy": (*_LOG_OPTIONS, *_COLUMN_OPTIONS),
    "rank": _WEIGHT_OPTIONS,
    "replay": _WEIGHT_OPTIONS,
    "spike": _WEIGHT_OPTIONS,
}
"""Which options of reading each command takes."""


def missing_section(name: str, absent: Unavailable | str, hint: str = "") -> ReportSection:
    """A section whose data are missing: the reason, and what to log, in place of an answer."""
    words = f"{absent} {hint}" if isinstance(absent, str) else f"{absent.reason} {absent.hint}"
    return ReportSection(name=name, missing=words.strip())


_MIN_STEPS = 20  # of fewer the interval of a trend is often as wide as its numbers are apart


def along_line(
    subject: str,
    change: Estimate,
    ends: tuple[int | None, int | None],
    form: str | Callable[[float], str],
    unit: str = "",
) -> Iterator[str]:
    """By how much a number changes along the line through its steps; no sentence where that is undefined."""
    if change.value is not None and change.num_units < _MIN_STEPS and not change.side_of_zero:
        by = f"{number(change.value, form)}{unit}"
        yield f"Over {counted(change.num_units, 'step')} {subject} changes by {by}: too few to tell where it goes."
    elif change.value is not None:
        undecided = "" if change.side_of_zero else ", so its direction is undecided"
        by = f"{number(change.value, form)}{unit} along its line{interval(change, form)}{undecided}"
        yield f"From step {ends[0]} to {ends[1]} {subject} changes by {by}."


def missing_part(name: str, part: Any, *, anchor: str | None = None) -> ReportSection:
    """The section of a part of what the log says of its policy, where it has no numbers."""
    reason, hint = absence_of(name, part)
    return missing_section(anchor or name, f"{reason[0].upper()}{reason[1:]}.", hint)


def visible(token: str) -> str:
    """The text of a token; white space alone as it is written in code."""
    return token if token.strip() else repr(token)


TEXT_LIMIT = 400  # characters of a text that the page shows; the log has the rest


def excerpt(text: str, limit: int = TEXT_LIMIT) -> str:
    """The beginning and end of a text: a completion's answer stands at its end."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} […] {text[-half:]}"


MAX_ROLLOUTS = 96
"""Rollouts of a page, but for one group of each step, which is always whole: more are not read, and a page is small."""
MAX_CHARACTERS = 120_000  # of all their texts, so that a page of long completions stays as small as one of short ones
MIN_CHARACTERS = 400  # of one text, however many there are

_Shares = Mapping[tuple[str, int], float]


def read_groups(
    run: Run, grams: Sequence[StepGram], threshold: float | None, main: str | None = None
) -> tuple[ReadGroup, ...]:
    """Groups of the recomputed steps, or where there are none of the first, the middle and the last."""
    # Of each step one group of each kind, then those with the largest parts of its gradient (without gradients, the
    # first ones), by step as logged. None where the log holds no texts.
    steps, num_rollouts = rollouts_by_step(run.groups)
    steps = steps[num_rollouts <= MAX_READ_BACK]
    if holds_rewards_alone(run.groups) or not len(steps):
        return ()
    kind = partial(kind_of, threshold=threshold, main=main)
    parts = {gram.step: _shares(gram) for gram in grams} or {
        step: {} for step in np.unique(steps[[0, len(steps) // 2, -1]]).tolist()
    }
    allowed = MAX_ROLLOUTS // max(len(parts), 1)
    chosen = [
        (group, shares)
        for step, shares in parts.items()
        for group in _chosen(run.groups_at(step), shares, kind, allowed)
        if any(rollout.prompt or rollout.completion for rollout in group.rollouts)
    ]
    texts = sum(1 + group.size for group, _ in chosen)
    limit = max(MIN_CHARACTERS, MAX_CHARACTERS // max(texts, 1))
    return tuple(
        ReadGroup(
            step=group.step,
            group_id=group.group_id,
            kind=kind(group),
            prompt=excerpt(group.rollouts[0].prompt, limit),
            rollouts=tuple(
                ReadRollout(
                    sample=rollout.sample,
                    reward=rollout.reward,
                    advantage=rollout.advantage,
                    share=shares.get((group.group_id, rollout.sample)),
                    completion=excerpt(rollout.completion, limit),
                )
                for rollout in group.rollouts
            ),
        )
        for group, shares in chosen
    )


def kind_of(group: RolloutGroup, threshold: float | None, main: str | None = None) -> str:
    """What the rewards of a group are alike in; ``side reward`` where those of ``main`` are alike and others differ."""
    rewards = [reward for reward in group.rewards if reward is not None]
    if len(rewards) < group.size:
        return "not known"
    if not all_equal(rewards):
        main_rewards = [rollout.rewards.get(main or "") for rollout in group.rollouts]
        logged = [reward for reward in main_rewards if reward is not None]
        return "side reward" if len(logged) == group.size and all_equal(logged) else "mixed"
    if threshold is None or group.size < 2:
        return "tied"
    return "all pass" if rewards[0] >= threshold else "all fail"


def _shares(gram: StepGram) -> _Shares:
    matrix = gram.policy_gram
    if matrix is None or matrix.sum() <= 0:
        return {}
    shares = projection_shares(matrix).tolist()
    return dict(zip(zip(gram.group_ids, gram.samples, strict=True), shares, strict=True))


def _chosen(
    groups: Sequence[RolloutGroup], shares: _Shares, kind: Callable[[RolloutGroup], str], allowed: int
) -> list[RolloutGroup]:
    """At least one group, then as many as ``allowed`` rollouts leave room for; in the order of the log."""
    largest = [max(abs(shares.get((group.group_id, r.sample), 0.0)) for r in group.rollouts) for group in groups]
    order = sorted(range(len(groups)), key=lambda index: -largest[index])
    first_of_kind: dict[str, int] = {}
    for index in order:
        first_of_kind.setdefault(kind(groups[index]), index)
    chosen: list[int] = []
    for index in dict.fromkeys((*first_of_kind.values(), *order)):
        if not chosen or groups[index].size <= allowed:
            chosen.append(index)
            allowed -= groups[index].size
    return [groups[index] for index in sorted(chosen)]
